// Dot products of one vector with several rows of memory at once: what products with few rows and attention
// of few queries spend their time on. They read each row once.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace goat {

constexpr std::int64_t dot_lanes = 16;  // one cache line

// sums[o] = <x, row o> for `rows` rows, where row o is at first + o * stride. Every row has 16 partial sums:
// lane l adds up the elements l, l + 16, l + 32, ..., and the lanes are added in a tree. So a sum has the
// same bits for any `rows`.
template <int rows>
SIMD_INLINE void dot_rows(float* sums, const float* x, const float* first, std::int64_t stride,
                          std::int64_t count) {
  float lanes[rows][dot_lanes] = {};
  const std::int64_t whole = count / dot_lanes * dot_lanes;
  for (std::int64_t i = 0; i < whole; i += dot_lanes) {
#pragma GCC unroll 8
    for (int o = 0; o < rows; ++o) {
#pragma omp simd
      for (std::int64_t l = 0; l < dot_lanes; ++l) lanes[o][l] += x[i + l] * first[o * stride + i + l];
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < rows; ++o) {
    for (std::int64_t l = 0; l < count - whole; ++l)
      lanes[o][l] += x[whole + l] * first[o * stride + whole + l];
    for (std::int64_t half = dot_lanes / 2; half > 0; half /= 2)
      for (std::int64_t l = 0; l < half; ++l) lanes[o][l] += lanes[o][l + half];
    sums[o] = lanes[o][0];
  }
}

}  // namespace goat
