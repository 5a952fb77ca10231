// LayerNorm of x + residual.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/row_sums.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
struct RowStatistics {
  // mean = centre + shift. Two floats, so that subtracting a mean far larger than the standard deviation
  // loses no accuracy.
  float centre;
  float shift;
  float rstd;
};

// Two passes. The second pass subtracts the rounded mean and also measures its rounding error.
SIMD_INLINE RowStatistics statistics_of(const float* row, std::int64_t width, float eps) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t c = 0; c < width; ++c) total += row[c];
  const float count = static_cast<float>(width);
  const float centre = total / count;
  float deviations = 0, squares = 0;
#pragma omp simd reduction(+ : deviations, squares)
  for (std::int64_t c = 0; c < width; ++c) {
    const float deviation = row[c] - centre;
    deviations += deviation;
    squares += deviation * deviation;
  }
  const float shift = deviations / count;
  const float variance = squares / count - shift * shift;
  return {centre, shift, 1.0f / std::sqrt((variance < 0 ? 0 : variance) + eps)};
}

SIMD_CLONES RowStatistics normalise_row(float* __restrict out, const float* __restrict row,
                                        const float* __restrict weight, const float* __restrict bias,
                                        std::int64_t width, float eps) {
  const RowStatistics s = statistics_of(row, width, eps);
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c)
    out[c] = ((row[c] - s.centre) - s.shift) * s.rstd * weight[c] + bias[c];
  return s;
}

// With y = (sum - mean) rstd, g = dout weight and <.> the mean over the row:
//   dsum += rstd (g - <g> - y <g y>),  dweight += dout y,  dbias += dout.
SIMD_CLONES void backward_row(float* __restrict dsum, float* __restrict dweight, float* __restrict dbias,
                              const float* __restrict dout, const float* __restrict sum,
                              const float* __restrict weight, float mean, float rstd, std::int64_t width) {
  float g_total = 0, gy_total = 0;
#pragma omp simd reduction(+ : g_total, gy_total)
  for (std::int64_t c = 0; c < width; ++c) {
    const float g = dout[c] * weight[c];
    g_total += g;
    gy_total += g * ((sum[c] - mean) * rstd);
  }
  const float g_mean = g_total / static_cast<float>(width);
  const float gy_mean = gy_total / static_cast<float>(width);
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) {
    const float y = (sum[c] - mean) * rstd;
    dsum[c] += rstd * (dout[c] * weight[c] - g_mean - y * gy_mean);
    dweight[c] += dout[c] * y;
    dbias[c] += dout[c];
  }
}
}  // namespace

// A thread owns rows. Moves 8 bytes per element, or 16 with a residual. A row stays in cache
// between its passes.
void CpuDevice::launch(const LayerNormForward& op) {
  const std::int64_t rows = op.x.shape[0], width = op.x.shape[1];
  const float *x = op.x.as<float>(), *residual = op.residual.as<float>(), *weight = op.weight.as<float>(),
              *bias = op.bias.as<float>();
  float *out = op.out.as<float>(), *sum = op.sum.as<float>(), *mean = op.mean.as<float>(),
        *rstd = op.rstd.as<float>();
#pragma omp parallel for schedule(static) if (rows > 1)
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::int64_t at = n * width;
    if (residual) add_residual(sum + at, x + at, residual + at, width);
    const RowStatistics s = normalise_row(out + at, (residual ? sum : x) + at, weight, bias, width, op.eps);
    mean[n] = s.centre + s.shift;
    rstd[n] = s.rstd;
  }
}

// [blocks, 2, C]: the parts of dweight and dbias.
std::size_t CpuDevice::workspace(const LayerNormBackward& op) const {
  return static_cast<std::size_t>(row_blocks(op.dout.shape[0]) * 2 * op.dout.shape[1]) * sizeof(float);
}

// A thread owns blocks of rows, then columns of dweight and dbias. Moves 16 bytes per element.
void CpuDevice::launch(const LayerNormBackward& op) {
  const std::int64_t rows = op.dout.shape[0], width = op.dout.shape[1];
  const float *dout = op.dout.as<float>(), *sum = op.sum.as<float>(), *weight = op.weight.as<float>();
  const float *mean = op.mean.as<float>(), *rstd = op.rstd.as<float>();
  float *dsum = op.dsum.as<float>(), *dweight = op.dweight.as<float>(), *dbias = op.dbias.as<float>();

  auto* parts = static_cast<float*>(workspace_.take(op));
  const std::int64_t block_rows = rows_per_block(rows), blocks = row_blocks(rows);
#pragma omp parallel for schedule(static)
  for (std::int64_t block = 0; block < blocks; ++block) {
    float* part = parts + block * 2 * width;
    std::fill_n(part, 2 * width, 0.0f);
    const std::int64_t last = std::min(rows, (block + 1) * block_rows);
    for (std::int64_t n = block * block_rows; n < last; ++n)
      backward_row(dsum + n * width, part, part + width, dout + n * width, sum + n * width, weight, mean[n],
                   rstd[n], width);
  }

  add_parts(dweight, parts, blocks, 2 * width, width);
  add_parts(dbias, parts + width, blocks, 2 * width, width);
}

}  // namespace goat
