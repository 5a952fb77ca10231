#include "train/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "train/config.h"
#include "train/config_keys.h"

namespace goat {

namespace {
constexpr const char* examples = R"(Examples:
  train_gpt_goat --config copy_mixture                       train the built-in task (under a minute on a laptop)
  train_gpt_goat --config shakespeare --set train.steps=500  train a preset with one key changed
  train_gpt_goat --config my_run.toml --out runs/trial       train from a file into a folder of your choice
  train_gpt_goat --config shakespeare --print-config         show every key of the resolved config

Exit codes: 0 done, 1 runtime failure, 2 bad usage or config, 3 bad data or checkpoint.)";

// ": did you mean --overwrite?" for the first option on the command line that is none.
std::string suggestion(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string option = word.substr(0, word.find('='));
    if (!option.starts_with("--") || std::ranges::count(known, option)) continue;
    const std::string near = nearest(option, known);
    if (!near.empty()) return ": did you mean " + near + "?";
  }
  return "";
}
}  // namespace

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv) {
  CommandLine options;
  CLI::App app{"Trains GPT models whose attention has a learnable prior.", "train_gpt_goat"};
  app.footer(examples);
  app.get_formatter()->column_width(28);
  app.add_option("--config", options.config, "preset or .toml file")->type_name("NAME|FILE.toml");
  app.add_option("--set", options.settings, "change a key of the config; may be repeated")->type_name("SECTION.KEY=VALUE")->allow_extra_args(false);
  app.add_option("--device", options.device, "where to compute (default: auto, the best there is)")->type_name("auto|cpu");
  app.add_option("--out", options.out, "the run's folder (default: runs/CONFIG)")->type_name("FOLDER");
  app.add_flag("--overwrite", options.overwrite, "replace the run that the folder holds");
  app.add_flag("--list-configs", options.list_configs, "list the presets and stop");
  app.add_flag("--print-config", options.print_config, "print the resolved config as TOML and stop");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(std::string(error.what()) + suggestion(app, argc, argv) + "\nRun train_gpt_goat --help for the options.");
  }
  if (options.config.empty() && !options.list_configs)
    throw ConfigError("--config is missing: name a preset (see --list-configs) or a .toml file\nRun train_gpt_goat --help for the options.");
  return options;
}

}  // namespace goat
