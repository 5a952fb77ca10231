// Which device a run takes, and what it is told about it.
#pragma once

#include <string>

namespace goat {

// What came of looking for a GPU.
struct GpuSearch {
  enum class Result {
    not_built,  // this binary has no GPU code at all
    none,       // no GPU answers
    too_old,    // its instructions are not those that the kernels need
    no_code,    // this binary has no code for it
    found
  };
  Result result = Result::not_built;
  std::string gpu{};           // "Tesla T4, compute capability 7.5", where one answers
  std::string architecture{};  // "75": as build options name it
  std::string error{};         // CUDA's words, where it gave some
};

// Why the GPU cannot be used, and what would bring it or says more; both empty where it was found.
struct Obstacle {
  std::string cause, remedy;
};
Obstacle obstacle_of(const GpuSearch& search);

struct DeviceChoice {
  std::string name;    // "cpu", "cuda"
  std::string reason;  // why, for the user
};

// What "auto" takes.
DeviceChoice choose_device(const GpuSearch& search);

}  // namespace goat
