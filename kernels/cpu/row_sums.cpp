#include "kernels/cpu/row_sums.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace goat {

SIMD_CLONES void add_residual(float* sum, const float* x, const float* residual, std::int64_t width) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) sum[c] = x[c] + residual[c];
}

std::int64_t rows_per_block(std::int64_t rows) { return std::max<std::int64_t>(16, (rows + 255) / 256); }
std::int64_t row_blocks(std::int64_t rows) {
  return (rows + rows_per_block(rows) - 1) / rows_per_block(rows);
}

namespace {
SIMD_CLONES void add_to(float* __restrict total, const float* __restrict part, std::int64_t count) {
#pragma omp simd
  for (std::int64_t c = 0; c < count; ++c) total[c] += part[c];
}
}  // namespace

void add_parts(float* total, const float* parts, std::int64_t blocks, std::int64_t stride,
               std::int64_t width) {
  constexpr std::int64_t columns = 128;
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < width; first += columns)
    for (std::int64_t block = 0; block < blocks; ++block)
      add_to(total + first, parts + block * stride + first, std::min(columns, width - first));
}

}  // namespace goat
