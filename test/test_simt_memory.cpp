// Memory of the simulated device: poison, bounds, leaks; and what AddressSanitizer and UBSan report of
// kernels in that build.
#include <cmath>
#include <cstring>

#include "kernels/cuda/vector.cuh"
#include "test/simulated.h"

using namespace goat::test;

namespace goat::GOAT_TARGET {
namespace {

enum class Fault {
  none,
  static_array,
  dynamic_array,
  global_array,
  no_tail_guard,
  misaligned_vector,
  unset_shared,
  read_past
};

// y = 2 x for `count` elements, by way of shared memory, with faults.
__global__ void doubled(Fault fault, const float* x, float* y, int count, int past) {
  GOAT_SHARED(tile, float[64]);
  float* dynamic = dynamic_shared<float>();
  const int thread = static_cast<int>(threadIdx.x), i = static_cast<int>(blockIdx.x * blockDim.x) + thread;
  if (fault != Fault::unset_shared) tile[thread] = 2;
  dynamic[thread] = tile[thread];
  if (fault == Fault::static_array && thread == 5) MARK(0), tile[thread + past] = 1;
  if (fault == Fault::dynamic_array && thread == 5) MARK(0), dynamic[64] = 1;
  if (fault == Fault::global_array && thread == 5) MARK(0), y[count] = 1;
  if (fault == Fault::read_past && thread == 5) MARK(0), dynamic[thread] = x[count];
  if (fault == Fault::misaligned_vector && thread == 5) {
    MARK(0), Vector<float>::load(x + 1).store(y);
    return;
  }
  if (fault == Fault::no_tail_guard)
    MARK(0), y[i] = dynamic[thread] * 3;
  else if (i < count)
    y[i] = dynamic[thread] * x[i];
}

constexpr int elements = 100;

std::string run(Fault fault, std::vector<float>* result = nullptr) {
  const DeviceArray<float> x(std::vector<float>(elements, 1.0f)), y(std::size_t{elements});
  const std::string text = report_of(
      [&] { enqueue(doubled, dim3(2), dim3(64), 64 * sizeof(float), nullptr, fault, x, y, elements, 59); });
  if (result) *result = y.values();
  return text;
}

// A sanitizer ends the process: a child's.
std::string run_in_child(Fault fault) {
  return report_of_child([&] {
    ScopedOptions scope;
    const DeviceArray<float> x(std::vector<float>(elements, 1.0f)), y(std::size_t{elements});
    enqueue(doubled, dim3(2), dim3(64), 64 * sizeof(float), nullptr, fault, x, y, elements, 59);
  });
}

}  // namespace
}  // namespace goat::GOAT_TARGET

using namespace goat::GOAT_TARGET;

TEST_CASE("simt: device memory is poisoned when it is new, and shared memory in every block") {
  ScopedOptions scope;
  const DeviceArray<float> fresh(77);
  for (std::size_t i = 0; i < 77; ++i) CHECK(std::isnan(fresh[i]));
  CHECK(reinterpret_cast<std::uintptr_t>(static_cast<float*>(fresh)) % 256 == 0);
  std::vector<float> result;
  CHECK(run(Fault::none, &result) == "");
  CHECK(result == std::vector<float>(elements, 2.0f));
  const std::string report = run(Fault::unset_shared, &result);  // after a block that set the same memory
  for (float value : result) CHECK(std::isnan(value));
  if (race_checking_available()) CHECK_THAT(report, ContainsSubstring("read of uninitialised memory"));
}

TEST_CASE("simt: writes behind shared and device memory are reported") {
  if (address_sanitizer) return;  // the next test
  ScopedOptions scope;
  for (const auto& [fault, what] :
       {std::pair(Fault::static_array, "tile"), std::pair(Fault::dynamic_array, "dynamic shared memory"),
        std::pair(Fault::global_array, "device"), std::pair(Fault::no_tail_guard, "device")}) {
    const std::string report = run(fault);
    INFO(report);
    CHECK_THAT(report, ContainsSubstring("out of bounds") && ContainsSubstring(what) &&
                           ContainsSubstring("doubled (test_simt_memory.cpp"));
    if (race_checking_available()) CHECK_THAT(report, ContainsSubstring(marked(0)));
    CHECK(run(Fault::none) == "");
  }
  if (!race_checking_available()) return;
  const std::string report = run(Fault::read_past);
  CHECK_THAT(report, ContainsSubstring("out of bounds") && ContainsSubstring(marked(0)));
}

TEST_CASE("simt: AddressSanitizer and UBSan see what kernels do to memory") {
  if (!address_sanitizer) return;
  CHECK_THAT(run_in_child(Fault::none), ContainsSubstring("exit 0"));
  for (Fault fault : {Fault::static_array, Fault::dynamic_array, Fault::global_array, Fault::no_tail_guard,
                      Fault::read_past}) {
    const std::string report = run_in_child(fault);
    INFO(report);
    CHECK((report.find("AddressSanitizer") != std::string::npos ||
           report.find("runtime error: index 64 out of bounds") != std::string::npos));
    CHECK_THAT(report, ContainsSubstring("test_simt_memory.cpp:"));
  }
  const std::string report = run_in_child(Fault::misaligned_vector);
  INFO(report);
  CHECK_THAT(report, ContainsSubstring("misaligned address") && ContainsSubstring("vector.cuh:"));
}

TEST_CASE("simt: the race checker sees misaligned vectors") {
  if (!race_checking_available()) return;
  ScopedOptions scope;
  const std::string report = run_in_child(Fault::misaligned_vector);
  INFO(report);
  CHECK_THAT(report, ContainsSubstring("misaligned access") && ContainsSubstring("test_simt_memory.cpp:"));
}

TEST_CASE("simt: device memory that is released twice, or not at all, is noticed") {
  const DeviceMemoryUse before = device_memory_use();
  void* memory = device_allocate(1000);
  CHECK(device_memory_use().allocations == before.allocations + 1);
  CHECK(device_memory_use().bytes == before.bytes + 1000);
  device_release(memory);
  CHECK(device_memory_use().allocations == before.allocations);
  CHECK_THAT(report_of([&] { device_release(memory); }), ContainsSubstring("released twice"));
  CHECK_THROWS_AS(device_allocate(SIZE_MAX), std::bad_alloc);
  if (!address_sanitizer) {
    const std::string report = report_of_child([] {
      options().leaks = true;
      device_allocate(1234);
      std::exit(0);
    });
    CHECK_THAT(report, ContainsSubstring("never released"));
  }
}
