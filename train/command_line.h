// The command line: options, help, and messages for what does not parse.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace goat {

struct CommandLine {
  std::string config;
  std::vector<std::string> settings;  // section.key=value, in order
  std::string device = "auto";
  std::string out;
  bool overwrite = false;
  bool list_configs = false;
  bool print_config = false;
};

// nullopt: nothing to do (--help was printed). Throws ConfigError for anything that does not parse.
std::optional<CommandLine> parse_command_line(int argc, const char* const* argv);

}  // namespace goat
