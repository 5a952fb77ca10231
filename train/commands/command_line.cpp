#include "train/commands/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "train/commands/version.h"
#include "train/config/config.h"
#include "train/config/config_keys.h"

namespace goat {

namespace {
constexpr const char* examples = R"(Examples:
  train_gpt_goat --config copy_mixture                        train the built-in task (a minute or less)
  train_gpt_goat --config shakespeare --set train.steps=500   train a preset with one key changed
  train_gpt_goat --config my_run.toml --out runs/trial        train from a file into a folder of your choice
  train_gpt_goat --resume --out runs/trial                    continue where the run in the folder stopped
  train_gpt_goat --init-from runs/trial --out runs/longer --set data.seq_len=512   start from its weights
  train_gpt_goat --config c4_125m --dry-run                   parameters, memory and hours, without training
  train_gpt_goat --config shakespeare --ranks 2               train by two processes of this host
  train_gpt_goat --config shakespeare --profile 5             what each operation of a step takes
  train_gpt_goat eval --checkpoint runs/shakespeare --lengths 128,256,512,1024,2048
  train_gpt_goat eval --checkpoint runs/c4_125m runs/c4_125m_rope --protocol both --json eval.json
  train_gpt_goat eval --checkpoint runs/c4_125m --data data/c4/val_*.bin --lengths 2048,4096
  train_gpt_goat analyze --checkpoint runs/shakespeare
  train_gpt_goat sample --checkpoint runs/shakespeare --prompt "ROMEO:" --samples 3
  train_gpt_goat sample --checkpoint runs/shakespeare --prompt-file start.txt --temperature 0.8

Exit codes: 0 done, 1 runtime failure, 2 bad usage or config, 3 bad data or checkpoint, 4 stopped by a signal
after saving.
)";

constexpr std::int64_t longest_sequence = 16'000'000;  // positions stay exact in fp32
constexpr std::int64_t most_tokens = 1'000'000'000'000'000;
constexpr std::int64_t most_profiled = 100;  // steps; every call in them is kept
constexpr std::int64_t most_samples = 1'000'000;
constexpr std::int64_t most_ranks = 1024;
constexpr std::int64_t most_heads = 10'000;  // whether the model has the head is checked later

// Refuses an empty name. It often comes from an unset shell variable and must not mean the default.
CLI::Validator name() {
  return {[](const std::string& word) {
            return word.empty() ? std::string("the name is empty; give one, or leave the option out")
                                : std::string();
          },
          ""};
}

CLI::Validator integer(std::int64_t low, std::int64_t high) {
  return {[low, high](const std::string& word) {
            std::int64_t value = 0;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
            const bool good = error == std::errc{} && end == word.data() + word.size();
            if (good && value >= low && value <= high) return std::string();
            return word + " is not allowed; expected an integer from " + std::to_string(low) + " to " +
                   std::to_string(high);
          },
          ""};
}

CLI::Validator number() {
  return {[](const std::string& word) {
            char* end = nullptr;
            std::strtod(word.c_str(), &end);
            return !word.empty() && *end == '\0' ? std::string()
                                                 : "\"" + word + "\" is not allowed; expected a number";
          },
          ""};
}

CLI::Validator positive_number() {
  return {[](const std::string& word) {
            char* end = nullptr;
            const double value = std::strtod(word.c_str(), &end);
            const bool good = !word.empty() && *end == '\0' && value > 0 && std::isfinite(value);
            return good ? std::string() : "\"" + word + "\" is not allowed; expected a number above 0";
          },
          ""};
}

// From 0 to 1.
CLI::Validator share() {
  return {[](const std::string& word) {
            char* end = nullptr;
            const double value = std::strtod(word.c_str(), &end);
            const bool good = !word.empty() && *end == '\0' && value >= 0 && value <= 1;
            return good ? std::string() : "\"" + word + "\" is not allowed; expected a number from 0 to 1";
          },
          ""};
}

void add_training(CLI::App& app, TrainOptions& options) {
  app.add_option("--config", options.config, "preset or .toml file")
      ->type_name("NAME|FILE.toml")
      ->check(name());
  app.add_option("--set", options.settings, "change a key of the config; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--out", options.out, "the run's folder (default: runs/CONFIG)")
      ->type_name("FOLDER")
      ->check(name());
  CLI::Option* init_from =
      app.add_option("--init-from", options.init_from,
                     "start with the weights of a run, of a checkpoint folder or of its model.safetensors; "
                     "without --config, with that run's config")
          ->type_name("RUN|FOLDER|FILE")
          ->check(name());
  CLI::Option* resume = app.add_flag(
      "--resume", options.resume,
      "continue the run in the folder from its newest complete checkpoint; without --config, with its own");
  CLI::Option* overwrite =
      app.add_flag("--overwrite", options.overwrite, "replace the run in the folder")->excludes(resume);
  app.add_flag("--allow-changed-data", options.allow_changed_data,
               "resume although the training data are not those the run began with")
      ->needs(resume);
  CLI::Option* print_config =
      app.add_flag("--print-config", options.print_config, "print the resolved config as TOML and stop");
  CLI::Option* dry_run = app.add_flag(
      "--dry-run", options.dry_run,
      "print parameters, memory, steps, hours and data, and stop; with --print-config the config too");
  app.add_option("--tokens-per-second", options.tokens_per_second,
                 "speed that a dry run counts hours with (default: that of the run in the folder)")
      ->type_name("X")
      ->check(positive_number())
      ->needs(dry_run);
  CLI::Option* profile =
      app.add_option("--profile", options.profile,
                     "time every operation in N steps, write OUT/profile, and stop; no run is touched")
          ->type_name("N")
          ->check(integer(1, most_profiled))
          ->excludes(resume)
          ->excludes(init_from)
          ->excludes(overwrite)
          ->excludes(dry_run)
          ->excludes(print_config);
  app.add_option("--peak-tflops", options.peak_tflops,
                 "what MFU refers to (default: the bf16 or TF32 peak of the GPU, by its name)")
      ->type_name("X")
      ->check(positive_number());
  app.add_option("--ranks", options.ranks,
                 "train by N processes on this host, each with its share of every batch; with --dry-run: the "
                 "plan of each")
      ->type_name("N")
      ->check(integer(1, most_ranks))
      ->excludes(profile);
  app.add_flag("--list-configs", options.list_configs, "list the presets and stop");
}

void add_data(CLI::App& command, std::vector<std::string>& data, const std::string& purpose) {
  command.add_option("--data", data, "shards " + purpose + " (default: the run's validation data)")
      ->type_name("GLOB|FILE")
      ->check(name());
}

// `checkpoint` is one, or a list of several.
template <class Checkpoint>
void add_model(CLI::App& command, Checkpoint& checkpoint, std::string& precision) {
  command
      .add_option(
          "--checkpoint", checkpoint,
          "run folder (its newest checkpoint), step_* folder, or a model.safetensors with its state.json")
      ->type_name("RUN")
      ->check(name())
      ->required();
  command
      .add_option("--precision", precision,
                  "of matrix products and activations (default: the run's model.precision, on the cpu "
                  "fp32; auto: bf16 on a GPU, fp32 on the cpu)")
      ->type_name("auto|fp32|bf16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}));
}

CLI::App& add_eval(CLI::App& app, EvalOptions& options) {
  CLI::App& command =
      *app.add_subcommand("eval", "perplexity or answers of trained models at a list of lengths");
  add_model(command, options.checkpoints, options.precision);
  add_data(command, options.data, "to evaluate on");
  command
      .add_option("--lengths", options.lengths,
                  "sequence lengths, as in 256,512,1024 (default: the training length; passkey and niah: as "
                  "published)")
      ->type_name("N,N")
      ->delimiter(',')
      ->check(integer(1, longest_sequence));
  command
      .add_option("--protocol", options.protocol,
                  "recut: the same tokens cut at each length; paper: the published protocol (default: recut)")
      ->type_name("recut|paper|both")
      ->check(name());
  command.add_option("--tokens", options.tokens, "recut: at most this many tokens (default: all)")
      ->type_name("N")
      ->check(integer(1, most_tokens));
  command
      .add_option("--samples", options.samples,
                  "passkey, niah: samples of each length and depth (default: 40, 20)")
      ->type_name("N")
      ->check(integer(1, most_samples));
  command
      .add_option("--depths", options.depths,
                  "passkey, niah: where in the filler, as in 0.1,0.5,0.9 (default: niah 0.1,0.3,0.5,0.7,0.9)")
      ->type_name("X,X")
      ->delimiter(',')
      ->check(share());
  command.add_option("--per-token", options.per_token, "write the loss of every token")
      ->type_name("FILE.npy")
      ->check(name());
  command.add_option("--json", options.json, "write the results")->type_name("FILE.json")->check(name());
  return command;
}

CLI::App& add_analyze(CLI::App& app, AnalyzeOptions& options) {
  CLI::App& command = *app.add_subcommand("analyze", "what the prior has learned, as .npy and .json files");
  add_model(command, options.checkpoint, options.precision);
  command.add_option("--out", options.out, "where the files go (default: RUN/analysis)")
      ->type_name("FOLDER")
      ->check(name());
  command.add_option("--length", options.length, "T (default: the training length)")
      ->type_name("N")
      ->check(integer(2, longest_analysis));
  command.add_option("--layer", options.layer, "layer of log_prior.npy, from 0 on (default: 0)")
      ->type_name("N")
      ->check(integer(-most_heads, most_heads));
  command.add_option("--head", options.head, "head of log_prior.npy, from 0 on (default: 0)")
      ->type_name("N")
      ->check(integer(-most_heads, most_heads));
  add_data(command, options.data, "for signal_vs_sink.npy");
  return command;
}

CLI::App& add_sample(CLI::App& app, SampleOptions& options) {
  CLI::App& command = *app.add_subcommand("sample", "text from a trained model");
  add_model(command, options.checkpoint, options.precision);
  command.add_option("--prompt", options.prompt, "text to continue; -: from stdin")->type_name("TEXT");
  command.add_option("--prompt-file", options.prompt_file, "the text in a file, byte by byte; -: from stdin")
      ->type_name("FILE")
      ->check(name());
  command.add_option("--tokens", options.tokens, "tokens to generate (default: 200)")
      ->type_name("N")
      ->check(integer(1, longest_sequence));
  command
      .add_option("--samples", options.samples,
                  "continuations; number i has the seed --seed + i - 1 (default: 1)")
      ->type_name("N")
      ->check(integer(1, most_samples));
  command.add_option("--json", options.json, "write the continuations, with their token ids")
      ->type_name("FILE.json")
      ->check(name());
  command.add_option("--temperature", options.temperature, "0: always the most likely token (default: 1)")
      ->type_name("X")
      ->check(number());
  command.add_option("--top-k", options.top_k, "only the K most likely tokens (default: 0, off)")
      ->type_name("K")
      ->check(integer(0, most_tokens));
  command
      .add_option("--top-p", options.top_p,
                  "only the most likely tokens that have probability P together (default: 1, off)")
      ->type_name("P")
      ->check(number());
  command.add_option("--seed", options.seed, "of the draws (default: 1)")
      ->type_name("N")
      ->check(integer(0, most_tokens));
  command
      .add_option("--tokenizer", options.tokenizer,
                  "how text becomes tokens (default: that of the training data)")
      ->type_name("auto|bytes|gpt2|tokenizer.json|dna|characters|ids");
  command
      .add_option("--tokenizer-dir", options.tokenizer_dir,
                  "folder with vocab.bpe and encoder.json (gpt2) or tokenizer.json")
      ->type_name("FOLDER")
      ->check(name());
  command.add_flag("--no-cache", options.no_cache, "recompute the whole sequence for every token");
  return command;
}

// ": did you mean --overwrite?" for the first option on the command line that `app` does not have.
std::string suggestion(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], option = word.substr(0, word.find('='));
    if (!option.starts_with("--") || std::ranges::count(known, option)) continue;
    const std::string near = nearest(option, known);
    if (!near.empty()) return ": did you mean " + near + "?";
  }
  return "";
}

// CLI11 would take the next option as the value.
void require_values_of_set(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--set" &&
        (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--")))
      throw ConfigError("--set needs a value: --set section.key=value");
}

void refuse_options_of_training(const CLI::App& app, const CLI::App& command) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && option->get_name() != "--device")
      throw ConfigError(option->get_name() + " belongs to training, not to " + command.get_name() +
                        "; see train_gpt_goat " + command.get_name() + " --help");
}

void require_run(const TrainOptions& options) {
  const bool without_config = (options.resume || !options.init_from.empty()) && !options.out.empty();
  if (options.config.empty() && !options.list_configs && !without_config)
    throw ConfigError(
        "--config is missing: name a preset (see --list-configs) or a .toml file, continue a run with "
        "--resume --out RUN, or start from a run's weights with --init-from RUN --out FOLDER\nRun "
        "train_gpt_goat --help for the options.");
}

// Everything but the options of a command.
void add_general(CLI::App& app, CommandLine& line) {
  app.footer(examples);
  app.get_formatter()->column_width(28);
  app.require_subcommand(0, 1);
  app.add_option("--device", line.device, "where to compute (default: auto, the best there is)")
      ->type_name("auto|cuda|cpu|simt");
  app.fallthrough();  // allows --device after the subcommand
  app.set_version_flag("--version", version_text, "print commit, compiler, devices and libraries, and stop");
}
}  // namespace

std::optional<CommandLine> parse_command_line(int argc, const char* const* argv) {
  require_values_of_set(argc, argv);
  CommandLine line;
  TrainOptions training;
  EvalOptions evaluation;
  AnalyzeOptions analysis;
  SampleOptions sampling;
  CLI::App app{"Trains GPT models whose attention has a learnable prior.", "train_gpt_goat"};
  add_general(app, line);
  add_training(app, training);
  const CLI::App &eval = add_eval(app, evaluation), &analyze = add_analyze(app, analysis),
                 &sample = add_sample(app, sampling);
  const auto active = [&]() -> const CLI::App& {
    return eval.parsed() ? eval : analyze.parsed() ? analyze : sample.parsed() ? sample : app;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::CallForVersion&) {
    std::fputs(version_text().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(std::string(error.what()) + suggestion(active(), argc, argv) +
                      "\nRun train_gpt_goat --help for the options.");
  }
  if (&active() == &app)
    require_run(training);
  else
    refuse_options_of_training(app, active());
  evaluation.arguments.assign(argv + 1, argv + argc);
  if (eval.parsed())
    line.command = evaluation;
  else if (analyze.parsed())
    line.command = analysis;
  else if (sample.parsed())
    line.command = sampling;
  else
    line.command = training;
  return line;
}

}  // namespace goat
