// The cpu device takes subnormal numbers as zero (kernels/cpu/subnormals.h).
#if defined(__x86_64__)
#include <omp.h>

#include <atomic>
#include <cfenv>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "test/catch.h"
#include "test/operand.h"

using goat::DType;
using goat::test::Operand;

namespace {
// Whether this thread takes subnormal results as zero, and subnormal operands.
bool are_flushed() {
  const volatile float tiny = 1e-20f, subnormal = 1e-40f, large = 1e10f;
  return tiny * tiny == 0 && subnormal * large == 0;
}
}  // namespace

TEST_CASE("subnormals: the threads that a cpu device finds take them as zero, and those that start later") {
  std::thread([] {
    std::fesetenv(FE_DFL_ENV);  // another test's device may have changed it
    const auto flushing = [](int threads) {
      std::atomic<int> count = 0;
#pragma omp parallel num_threads(threads)
      count += are_flushed();
      return count.load();
    };
    const int threads = omp_get_max_threads();
    CHECK(flushing(threads) == 0);
    const goat::CpuDevice device;
    CHECK(flushing(threads) == threads);
    CHECK(flushing(threads + 2) == threads + 2);
  }).join();
}

TEST_CASE("subnormals: a matrix product on the cpu device has none") {
  goat::CpuDevice device;
  const std::int64_t n = 64;
  const auto filled = [&](double value, const char* name) {
    return Operand::of(device, std::vector<double>(n * n, value), {n, n}, name);
  };
  const Operand out(device, DType::f32, {n, n}, "out");
  device.run(goat::LinearForward{out, filled(1e-20, "x"), filled(1e-20, "weight"), {}});
  CHECK(out.values() == std::vector<double>(n * n, 0.0));
  device.run(goat::LinearForward{out, filled(1e-40, "x"), filled(1e10, "weight"), {}});
  CHECK(out.values() == std::vector<double>(n * n, 0.0));
}
#endif
