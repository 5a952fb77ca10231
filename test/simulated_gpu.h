// The simulated device as a GPU of another architecture.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/simt/options.h"
#include "test/operand.h"

namespace goat::test {

// For as long as this lives. With `multiprocessors` given, of that many.
class SimulatedGpu {
 public:
  explicit SimulatedGpu(int architecture, int multiprocessors = 0) {
    on_simt::options().architecture = architecture;
    if (multiprocessors > 0) on_simt::options().multiprocessors = multiprocessors;
    device_ = open_device("simt");
  }
  SimulatedGpu(const SimulatedGpu&) = delete;
  SimulatedGpu& operator=(const SimulatedGpu&) = delete;
  ~SimulatedGpu() { on_simt::options() = usual_; }
  Device& operator*() const { return *device_; }

 private:
  on_simt::Options usual_ = on_simt::options();
  std::unique_ptr<Device> device_;
};

inline bool simt_is_tested() {
  const std::vector<std::string> names = device_names(DType::bf16);
  return std::find(names.begin(), names.end(), "simt") != names.end();
}

constexpr int simulated_architectures[] = {80, 86, 89, 90, 120};

}  // namespace goat::test
