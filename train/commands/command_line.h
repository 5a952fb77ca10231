// The command line: subcommands, options, help, and messages for what does not parse.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "train/commands/analyze.h"
#include "train/commands/evaluate.h"
#include "train/commands/sample.h"

namespace goat {

struct TrainOptions {
  std::string config;                 // preset or .toml file; empty: that of the run that is resumed
  std::vector<std::string> settings;  // section.key=value, in order
  std::string out;
  bool resume = false;
  bool overwrite = false;
  bool allow_changed_data = false;  // with resume
  bool list_configs = false;
  bool print_config = false;
  bool dry_run = false;
};

struct CommandLine {
  std::string device = "auto";
  std::variant<TrainOptions, EvalOptions, AnalyzeOptions, SampleOptions> command;
};

// nullopt: nothing to do (--help or --version was printed). Throws ConfigError for anything that does not
// parse.
std::optional<CommandLine> parse_command_line(int argc, const char* const* argv);

}  // namespace goat
