// Chooses the device of a run and the reason that the user is told.
#pragma once

#include <string>

namespace goat {

// Of a rank among those of its host.
struct DevicePlace {
  int rank_on_host = 0, ranks_on_host = 1;
};
// The GPU that the rank takes of those that its process sees: one each; the only one where there is one,
// because a launcher may show every rank another one. Throws std::invalid_argument if there are fewer GPUs
// than ranks.
int gpu_of(const DevicePlace& place, int visible);

// The result of looking for a GPU.
struct GpuSearch {
  enum class Result {
    not_built,   // this binary has no GPU code at all
    no_driver,   // NVIDIA's driver is not installed
    old_driver,  // the driver is older than the CUDA toolkit that this binary was built with
    none,        // no GPU answers
    too_old,     // the GPU is older than the kernels need
    no_code,     // this binary has no code for the GPU's architecture
    found
  };
  Result result = Result::not_built;
  std::string gpu{};            // "Tesla T4, compute capability 7.5"; empty if no GPU answers
  std::string architecture{};   // "75", as build options name it
  std::string error{};          // CUDA's error message, if there is one
  int driver = 0, toolkit = 0;  // newest CUDA that the driver knows, and that of this build: 13010 is 13.1
};

// Why the GPU cannot be used, and how to make it usable or find out more. Both are empty if a GPU was found.
struct Obstacle {
  std::string cause, remedy;
};
Obstacle obstacle_of(const GpuSearch& search);

struct DeviceChoice {
  std::string name;    // "cpu", "cuda"
  std::string reason;  // why this device was chosen, for the user
};

// The device that "auto" takes.
DeviceChoice choose_device(const GpuSearch& search);

}  // namespace goat
