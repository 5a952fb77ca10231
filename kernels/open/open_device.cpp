#include "kernels/open/open_device.h"

#include <stdexcept>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/open.h"

namespace goat {

namespace {
#ifdef GOAT_HAS_CUDA
constexpr bool has_cuda = true;
#else
constexpr bool has_cuda = false;
#endif
#ifdef GOAT_HAS_SIMT
constexpr bool has_simt = true;
#else
constexpr bool has_simt = false;
#endif

GpuSearch find_gpu([[maybe_unused]] const DevicePlace& place) {
#ifdef GOAT_HAS_CUDA
  return on_cuda::find_gpu(place);
#else
  return {};
#endif
}

std::unique_ptr<Device> open_cuda() {
#ifdef GOAT_HAS_CUDA
  return on_cuda::open_device();
#else
  return nullptr;
#endif
}

std::unique_ptr<Device> open_simt() {
#ifdef GOAT_HAS_SIMT
  return on_simt::open_device();
#else
  return nullptr;
#endif
}
}  // namespace

std::unique_ptr<Device> open_device(const std::string& name, std::string* reason, const DevicePlace& place) {
  const auto because = [&](const std::string& text) {
    if (reason) *reason = text;
  };
  because("chosen with --device");
  if (name == "cpu") return std::make_unique<CpuDevice>();
  if (name == "simt") {
    if (auto device = open_simt()) return device;
    throw std::invalid_argument(
        "--device simt: this build has no simulated device; `make SIMT=ON` builds it (some minutes)");
  }
  if (name == "cuda") {
    if (const Obstacle obstacle = obstacle_of(find_gpu(place)); !obstacle.cause.empty())
      throw std::invalid_argument("--device cuda: " + obstacle.cause + "; " + obstacle.remedy +
                                  ", or use --device cpu");
    return open_cuda();
  }
  if (name == "auto") {
    const DeviceChoice choice = choose_device(find_gpu(place));
    because(choice.reason);
    if (choice.name == "cuda") return open_cuda();
    return std::make_unique<CpuDevice>();
  }
  throw std::invalid_argument(std::string("--device ") + name + ": this build has the devices auto, cpu" +
                              (has_cuda ? ", cuda" : "") + (has_simt ? ", simt" : ""));
}

}  // namespace goat
