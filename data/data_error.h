// DataError: data or a checkpoint that cannot be used.
#pragma once

#include <stdexcept>

namespace goat {

// The message names file and offset, what was expected and what to do. The program exits with code 3.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace goat
