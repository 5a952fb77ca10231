// What a failed call of a GPU means for the rest of the process.
#pragma once

#include <stdexcept>
#include <string>

namespace goat {

// The device broke down, or a fault of a kernel ended its context. Every further call on it fails, and what
// its memory holds cannot be read any more. what() names the error and says what to look at.
struct DeviceLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws the error of a CUDA call: `name` as cudaGetErrorName gives it, `words` as cudaGetErrorString does,
// `place` the call's source line. DeviceLost if the context is gone with it, else std::runtime_error.
[[noreturn]] void throw_cuda_error(const std::string& name, const std::string& words,
                                   const std::string& place);

}  // namespace goat
