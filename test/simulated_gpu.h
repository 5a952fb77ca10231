// The simulated device as a GPU of another architecture.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/scoped_options.h"
#include "test/tested_device.h"

namespace goat::test {

// For as long as this lives. With `multiprocessors` given, of that many.
class SimulatedGpu {
 public:
  explicit SimulatedGpu(int architecture, int multiprocessors = 0) {
    options_->architecture = architecture;
    if (multiprocessors > 0) options_->multiprocessors = multiprocessors;
    device_ = open_tested("simt");
  }
  Device& operator*() const { return *device_; }

 private:
  RestoredOptions options_;
  std::unique_ptr<Device> device_;
};

inline bool simt_is_tested() {
  const std::vector<std::string> names = device_names(DType::bf16);
  return std::find(names.begin(), names.end(), "simt") != names.end();
}

constexpr int simulated_architectures[] = {80, 86, 89, 90, 120};

// Calls body(device, architecture, rng) for a simulated GPU of each architecture; does nothing if simt is not
// tested.
template <class Body>
void for_each_architecture(Body body) {
  if (!simt_is_tested()) return;
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const int architecture : simulated_architectures) {
    INFO("sm_" << architecture << ", GOAT_TEST_SEED=" << seed);
    const SimulatedGpu device(architecture);
    body(*device, architecture, rng);
  }
}

}  // namespace goat::test
