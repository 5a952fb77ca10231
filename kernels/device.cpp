#include "kernels/device.h"

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

std::unique_ptr<Device> open_cuda() {
#ifdef GOAT_HAS_CUDA
  if (on_cuda::device_count() > 0) return on_cuda::open_device();
#endif
  return nullptr;
}

std::unique_ptr<Device> open_simt() {
#ifdef GOAT_HAS_SIMT
  return on_simt::open_device();
#else
  return nullptr;
#endif
}
}  // namespace

std::unique_ptr<Device> open_device(const std::string& name, std::string* reason) {
  const auto because = [&](const char* text) {
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
    if (auto device = open_cuda()) return device;
    throw std::invalid_argument(
        has_cuda ? "--device cuda: no GPU answers (nvidia-smi says more); --device cpu needs none"
                 : "--device cuda: this build has no cuda device; `make CUDA=ON` builds it (it needs nvcc), or "
                   "use --device cpu");
  }
  if (name == "auto") {
    if (auto device = open_cuda()) {
      because("a GPU answers");
      return device;
    }
    because(has_cuda ? "no GPU answers" : "this build has no cuda device");
    return std::make_unique<CpuDevice>();
  }
  throw std::invalid_argument(std::string("--device ") + name + ": this build has the devices auto, cpu" +
                              (has_cuda ? ", cuda" : "") + (has_simt ? ", simt" : ""));
}

}  // namespace goat
