// Dot products of one vector with several rows of memory at once: what products with few rows and attention
// of few queries spend their time on. They read each row once.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/simd.h"

namespace goat {

constexpr std::int64_t dot_lanes = 16;  // one cache line

// The sum of 16 lanes, in a tree: lane l and l + 8, then l and l + 4, l + 2, l + 1.
SIMD_INLINE float sum_of_lanes(float* lanes) {
  for (std::int64_t half = dot_lanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

// The same sums of four rows of lanes, with the rows side by side in a vector for the last two steps.
SIMD_INLINE void sum_four_rows(float* sums, const float (*lanes)[dot_lanes]) {
  using Four __attribute__((vector_size(16))) = float;
  Four rows[4];
  for (int o = 0; o < 4; ++o) {
    Four parts[4];
    std::memcpy(parts, lanes[o], sizeof parts);
    rows[o] = (parts[0] + parts[2]) + (parts[1] + parts[3]);
  }
  // (l0, l0, l1, l1) + (l2, l2, l3, l3) of two rows each
  const Four first = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5) +
                     __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7),
             last = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5) +
                    __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7),
             all = __builtin_shufflevector(first, last, 0, 1, 4, 5) +
                   __builtin_shufflevector(first, last, 2, 3, 6, 7);
  std::memcpy(sums, &all, sizeof all);
}

// sums[o] = <x, row o> for `rows` (1 or 4) rows, where row o is at first + o * stride. Every row has 16
// partial sums: lane l adds up the elements l, l + 16, l + 32, ..., and the lanes are added in a tree. So a
// sum has the same bits for any `rows`.
template <int rows>
SIMD_INLINE void dot_rows(float* sums, const float* x, const float* first, std::int64_t stride,
                          std::int64_t count) {
  static_assert(rows == 1 || rows == 4);
  float lanes[rows][dot_lanes] = {};
  const std::int64_t whole = count / dot_lanes * dot_lanes;
  for (std::int64_t i = 0; i < whole; i += dot_lanes) {
#pragma GCC unroll 4
    for (int o = 0; o < rows; ++o) {
#pragma omp simd
      for (std::int64_t l = 0; l < dot_lanes; ++l) lanes[o][l] += x[i + l] * first[o * stride + i + l];
    }
  }
  if (whole < count)
    for (int o = 0; o < rows; ++o)
      for (std::int64_t l = 0; l < count - whole; ++l)
        lanes[o][l] += x[whole + l] * first[o * stride + whole + l];
  if constexpr (rows == 4)
    sum_four_rows(sums, lanes);
  else
    sums[0] = sum_of_lanes(lanes[0]);
}

}  // namespace goat
