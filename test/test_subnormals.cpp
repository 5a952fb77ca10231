// kernels/cpu/subnormals.h. That the program calls it is tested in test_train.py.
#include <omp.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <thread>

#include "kernels/cpu/subnormals.h"
#include "test/catch.h"

namespace {
#if defined(__x86_64__)
constexpr bool has_effect = true;
#else
constexpr bool has_effect = false;
#endif

// Whether this thread takes subnormal results as zero, and subnormal operands.
bool are_flushed() {
  const volatile float tiny = 1e-20f, subnormal = 1e-40f, large = 1e10f;
  return std::bit_cast<std::uint32_t>(tiny * tiny) == 0 && subnormal * large == 0;
}
}  // namespace

TEST_CASE("subnormals: are zero in the thread that asks for it and in the threads that it starts") {
  std::thread([] {
    CHECK_FALSE(are_flushed());
    goat::flush_subnormals();
    std::atomic<int> flushed = 0;
    const int threads = omp_get_max_threads() + 2;
#pragma omp parallel num_threads(threads)
    flushed += are_flushed();
    CHECK(flushed == (has_effect ? threads : 0));
  }).join();
  CHECK_FALSE(are_flushed());
}
