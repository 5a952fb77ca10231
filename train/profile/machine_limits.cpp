#include "train/profile/machine_limits.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/simd.h"

namespace goat {

namespace {
template <class Call>
double best_seconds(Clock clock, int repeats, Call call) {
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double start = clock();
    call();
    best = std::min(best, clock() - start);
  }
  return best;
}

double measure_sgemm(Clock clock) {
  constexpr std::int64_t n = 2048;
  const std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f);
  std::vector<float> c(n * n);
  const double seconds = best_seconds(
      clock, 12, [&] { dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n); });
  return 2.0 * n * n * n / seconds;
}

SIMD_CLONES void add_scaled(float* a, const float* b, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) a[i] += 0.5f * b[i];
}

// In place, so that no cache line is fetched only to be overwritten.
double measure_bandwidth(Clock clock) {
  constexpr std::int64_t count = 32 << 20, block = 1 << 16;  // 128 MiB an array
  std::vector<float> a(count, 1.0f), b(count, 2.0f);
  const double seconds = best_seconds(clock, 6, [&] {
#pragma omp parallel for schedule(static)
    for (std::int64_t first = 0; first < count; first += block)
      add_scaled(a.data() + first, b.data() + first, block);
  });
  return 3.0 * count * sizeof(float) / seconds;
}
}  // namespace

double MachineLimits::seconds(double flops, double bytes) const {
  return std::max(flops / flops_per_second, bytes / bytes_per_second);
}

MachineLimits measure_machine(Clock clock) { return {measure_sgemm(clock), measure_bandwidth(clock)}; }

MachineLimits best_of(const MachineLimits& a, const MachineLimits& b) {
  return {std::max(a.flops_per_second, b.flops_per_second), std::max(a.bytes_per_second, b.bytes_per_second)};
}

}  // namespace goat
