// The command line: subcommands, options, help, and error messages.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "train/commands/analyze.h"
#include "train/commands/sample.h"
#include "train/eval/evaluate.h"

namespace goat {

struct TrainOptions {
  std::string config;                 // preset or .toml file; empty: the config of the resumed run
  std::vector<std::string> settings;  // section.key=value, in order
  std::string out;
  std::string init_from;  // run, checkpoint or model file whose weights a new run starts with
  bool resume = false;
  bool overwrite = false;
  bool allow_changed_data = false;  // only with resume
  bool list_configs = false;
  bool print_config = false;
  bool dry_run = false;
  std::int64_t ranks = 0;        // processes to start on this host; 0: not given
  std::int64_t profile = 0;      // steps; 0: off
  double peak_tflops = 0;        // 0: by the device's name
  double tokens_per_second = 0;  // only with dry_run; 0: not given
};

struct CommandLine {
  std::string device = "auto";
  std::variant<TrainOptions, EvalOptions, AnalyzeOptions, SampleOptions> command;
};

// Returns nullopt if nothing is left to do, because --help or --version was printed. Throws ConfigError if
// the command line is wrong.
std::optional<CommandLine> parse_command_line(int argc, const char* const* argv);

}  // namespace goat
