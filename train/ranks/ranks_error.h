// What keeps ranks from starting together.
#pragma once

#include <stdexcept>
#include <string>

namespace goat {

// `code` is the exit code: 2 where the command, its environment or its config is wrong, else 1.
struct RanksError : std::runtime_error {
  explicit RanksError(const std::string& what, int exit_code = 1)
      : std::runtime_error(what), code(exit_code) {}
  int code;
};

}  // namespace goat
