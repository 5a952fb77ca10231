// The forget gates on the CPU, and the key bias that they add up to.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
constexpr std::int64_t tile_columns = 64, tile_heads = 8;

// dx[c] += sum over the heads of dgates[h] weight[h, c]
SIMD_CLONES void add_input_gradient(float* dx, const float* dgates, const float* weight, std::int64_t heads,
                                    std::int64_t width) {
  for (std::int64_t first = 0; first < width; first += tile_columns) {
    const std::int64_t columns = std::min(tile_columns, width - first);
    float sum[tile_columns] = {};
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* row = weight + h * width + first;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) sum[c] += dgates[h] * row[c];
    }
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) dx[first + c] += sum[c];
  }
}

// Of a tile of dweight: its first element, and the parts of dgate and x of the first token.
struct WeightTile {
  float* dweight;
  const float *dgate, *x;
  std::int64_t tokens, heads, width;    // N, H, C
  std::int64_t own_heads, own_columns;  // of the tile
};

// dweight[h, c] += sum over the tokens of dgate[n, h] x[n, c], in double
SIMD_CLONES void add_weight_gradient(const WeightTile& tile) {
  double sums[tile_heads][tile_columns] = {};
  for (std::int64_t n = 0; n < tile.tokens; ++n) {
    const float *row = tile.x + n * tile.width, *gates = tile.dgate + n * tile.heads;
    for (std::int64_t h = 0; h < tile.own_heads; ++h) {
      const double gate = gates[h];
#pragma omp simd
      for (std::int64_t c = 0; c < tile.own_columns; ++c) sums[h][c] += gate * static_cast<double>(row[c]);
    }
  }
  for (std::int64_t h = 0; h < tile.own_heads; ++h)
    for (std::int64_t c = 0; c < tile.own_columns; ++c)
      tile.dweight[h * tile.width + c] += static_cast<float>(sums[h][c]);
}

// -log sigmoid(x)
double forgotten(float x) {
  const double value = x;
  return std::log1p(std::exp(-std::abs(value))) - std::min(value, 0.0);
}
}  // namespace

void CpuDevice::launch(const ForgetGatesForward& op) {
  CpuDevice::launch(LinearForward{.out = op.gate, .x = op.x, .weight = op.weight, .bias = op.bias});
}

// A thread owns tokens of dx, then tiles of dweight, then heads of dbias, so that each sum has one owner and
// a fixed order. 4 N H C FLOP. Reads x once for every 8 heads.
void CpuDevice::launch(const ForgetGatesBackward& op) {
  const std::int64_t tokens = op.x.shape[0], width = op.x.shape[1], heads = op.weight.shape[0];
  const float *x = op.x.as<float>(), *weight = op.weight.as<float>(), *dgate = op.dgate.as<float>();
  float *dx = op.dx.as<float>(), *dweight = op.dweight.as<float>(), *dbias = op.dbias.as<float>();
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (std::int64_t n = 0; n < tokens; ++n)
      add_input_gradient(dx + n * width, dgate + n * heads, weight, heads, width);
#pragma omp for collapse(2) schedule(static)
    for (std::int64_t h = 0; h < heads; h += tile_heads)
      for (std::int64_t c = 0; c < width; c += tile_columns)
        add_weight_gradient({dweight + h * width + c, dgate + h, x + c, tokens, heads, width,
                             std::min(tile_heads, heads - h), std::min(tile_columns, width - c)});
#pragma omp for schedule(static)
    for (std::int64_t h = 0; h < heads; ++h) {
      double sum = 0;
      for (std::int64_t n = 0; n < tokens; ++n) sum += dgate[n * heads + h];
      dbias[h] += static_cast<float>(sum);
    }
  }
}

// A thread owns (sequence, head) pairs. Reads 4 and writes 8 bytes a gate.
void CpuDevice::launch(const ForgetBiasForward& op) {
  const std::int64_t batch = op.gate.shape[0], length = op.gate.shape[1], heads = op.gate.shape[2];
  const float* gate = op.gate.as<float>();
  auto* key_bias = op.key_bias.as<double>();
#pragma omp parallel for collapse(2) schedule(static) if (length > 1)
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      double* row = key_bias + b * op.key_bias.stride[0] + h * op.key_bias.stride[1] + op.first_position;
      double sum = op.first_position > 0 && length > 0 ? row[-1] : 0;
      for (std::int64_t t = 0; t < length; ++t) row[t] = sum += forgotten(gate[(b * length + t) * heads + h]);
    }
}

// A thread owns (sequence, head) pairs. Moves 12 bytes a gate.
void CpuDevice::launch(const ForgetBiasBackward& op) {
  const std::int64_t batch = op.gate.shape[0], length = op.gate.shape[1], heads = op.gate.shape[2];
  const float *gate = op.gate.as<float>(), *dkey_bias = op.dkey_bias.as<float>();
  float* dgate = op.dgate.as<float>();
#pragma omp parallel for collapse(2) schedule(static)
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      double sum = 0;
      for (std::int64_t t = length - 1; t >= 0; --t) {
        const std::int64_t at = (b * length + t) * heads + h;
        sum += dkey_bias[(b * heads + h) * length + t];
        dgate[at] = static_cast<float>(-sum / (1 + std::exp(static_cast<double>(gate[at]))));
      }
    }
}

}  // namespace goat
