#include "kernels/device.h"

#include <stdexcept>

#include "kernels/cpu/cpu_device.h"

namespace goat {

std::unique_ptr<Device> open_device(const std::string& name, std::string* reason) {
  const auto because = [&](const char* text) {
    if (reason) *reason = text;
  };
  if (name == "auto") {
    because("this build has no cuda device");
    return std::make_unique<CpuDevice>();
  }
  if (name == "cpu") {
    because("chosen with --device");
    return std::make_unique<CpuDevice>();
  }
  throw std::invalid_argument("--device " + name + ": this build has the devices auto, cpu");
}

}  // namespace goat
