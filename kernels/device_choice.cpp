#include "kernels/device_choice.h"

#include <stdexcept>

namespace goat {

namespace {
std::string in_brackets(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string how_to_build(const std::string& architecture) {
  return "build it in with `make CUDA=ON ARCHITECTURES=" + architecture +
         "` (cmake: -DGOAT_CUDA=ON -DGOAT_CUDA_ARCHITECTURES=" + architecture + ")";
}
}  // namespace

int gpu_of(const DevicePlace& place, int visible) {
  if (visible == 1) return 0;
  if (place.ranks_on_host > visible)
    throw std::invalid_argument("there are " + std::to_string(place.ranks_on_host) +
                                " ranks on this host, and " + std::to_string(visible) +
                                " GPUs that they can see: start one rank a GPU (--ranks " +
                                std::to_string(visible) + "), or give --device cpu");
  return place.rank_on_host;
}

Obstacle obstacle_of(const GpuSearch& search) {
  switch (search.result) {
    case GpuSearch::Result::not_built:
      return {"this build has no cuda device", "install nvcc and build again with `make CUDA=ON`"};
    case GpuSearch::Result::no_driver:
      return {"NVIDIA's driver is not installed or not loaded here" + in_brackets(search.error),
              "install it, until nvidia-smi lists the GPU (in a container: start it with --gpus all)"};
    case GpuSearch::Result::old_driver:
      return {
          "the NVIDIA driver here is too old: it knows CUDA up to " + version(search.driver) +
              ", and this binary was built with CUDA " + version(search.toolkit),
          "update the driver, or build again with the nvcc of CUDA " + version(search.driver) + " or older"};
    case GpuSearch::Result::none:
      return {"no GPU answers" + in_brackets(search.error), "nvidia-smi says more"};
    case GpuSearch::Result::too_old:
      return {"the GPU here is too old, " + search.gpu,
              "the kernels need compute capability 8.0 (A100, RTX 30) or more"};
    case GpuSearch::Result::no_code:
      return {"this binary has no code for the GPU here, " + search.gpu + in_brackets(search.error),
              how_to_build(search.architecture)};
    case GpuSearch::Result::found: break;
  }
  return {};
}

// If a GPU is present but cannot be used, the reason also says how to make it usable.
DeviceChoice choose_device(const GpuSearch& search) {
  if (search.result == GpuSearch::Result::found) return {"cuda", "a GPU answers"};
  const Obstacle obstacle = obstacle_of(search);
  return {"cpu", search.gpu.empty() ? obstacle.cause : obstacle.cause + "; " + obstacle.remedy};
}

}  // namespace goat
