// The key bias on the CPU: absolute-position features phi(j), the sink MLP u~(j) = w2 silu(w1 phi + b1) +
// bump [j == 0], and its gradients.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/fourier.h"
#include "kernels/cpu/simd.h"

namespace goat {

// A thread owns rows j. Writes 4 T F bytes. This runs once per run, because the features do not depend
// on learned values.
void CpuDevice::launch(const SinkFeatures& op) {
  const std::int64_t rows = op.features.shape[0], width = op.features.shape[1], axes = op.positions.shape[1],
                     modes = op.frequency.shape[0];
  const double* frequency = op.frequency.as<double>();
  const auto* positions = op.positions.as<std::int32_t>();
  float* features = op.features.as<float>();
  const auto train_length = static_cast<double>(op.train_length);
#pragma omp parallel for schedule(static)
  for (std::int64_t j = 0; j < rows; ++j) {
    float* phi = features + j * width;
    for (std::int64_t m = 0; m < modes; ++m) {
      const FourierPair pair = fourier_pair(frequency[m], positions[j * axes + axis_of_mode(m, modes, axes)]);
      phi[m] = pair.cosine;
      phi[modes + m] = pair.sine;
    }
    const auto row = static_cast<double>(j);
    phi[2 * modes] = static_cast<float>(row / train_length);
    phi[2 * modes + 1] = static_cast<float>(std::log1p(row) / std::log1p(train_length));
  }
}

namespace {
SIMD_INLINE float sigmoid(float x) { return 1.0f / (1.0f + simd::exp(-x)); }

// Number of rows of key_bias that a thread computes at a time. The loops of the MLP run over the rows of a
// tile, so that they vectorise for any F, n and H.
constexpr std::int64_t tile_rows = 64;

struct SinkForwardOperands {
  float *key_bias, *hidden;
  const float *features, *w1, *b1, *w2, *bump;
  std::int64_t length, width, units, heads;  // T, F, n, H
};

// Computes rows first .. first + rows - 1. phi [F, tile_rows] and activation [n, tile_rows] are
// temporary memory, transposed so that rows are contiguous.
SIMD_CLONES void sink_forward_tile(const SinkForwardOperands& op, std::int64_t first, std::int64_t rows,
                                   float* phi, float* activation) {
  for (std::int64_t f = 0; f < op.width; ++f)
    for (std::int64_t t = 0; t < rows; ++t) phi[f * tile_rows + t] = op.features[(first + t) * op.width + f];

  for (std::int64_t m = 0; m < op.units; ++m) {
    float* unit = activation + m * tile_rows;
    std::fill(unit, unit + rows, op.b1[m]);
    for (std::int64_t f = 0; f < op.width; ++f) {
      const float weight = op.w1[m * op.width + f];
      const float* feature = phi + f * tile_rows;
#pragma omp simd
      for (std::int64_t t = 0; t < rows; ++t) unit[t] += weight * feature[t];
    }
    for (std::int64_t t = 0; t < rows; ++t) op.hidden[(first + t) * op.units + m] = unit[t];
#pragma omp simd
    for (std::int64_t t = 0; t < rows; ++t) unit[t] *= sigmoid(unit[t]);
  }

  for (std::int64_t h = 0; h < op.heads; ++h) {
    float* bias = op.key_bias + h * op.length + first;
    std::fill(bias, bias + rows, 0.0f);
    if (first == 0) bias[0] = op.bump[h];
    for (std::int64_t m = 0; m < op.units; ++m) {
      const float weight = op.w2[h * op.units + m];
      const float* unit = activation + m * tile_rows;
#pragma omp simd
      for (std::int64_t t = 0; t < rows; ++t) bias[t] += weight * unit[t];
    }
  }
}
}  // namespace

namespace {
// Memory of one thread: [F + n, tile_rows].
std::int64_t tile_floats(const SinkForward& op) {
  return (op.features.shape[1] + op.hidden.shape[1]) * tile_rows;
}
}  // namespace

std::size_t CpuDevice::workspace(const SinkForward& op) const {
  return static_cast<std::size_t>(omp_get_max_threads() * tile_floats(op)) * sizeof(float);
}

// A thread owns tiles of rows. 2 T n (F + H) FLOP. Reads features and writes hidden and key_bias: 4 T (F + n
// + H) bytes.
void CpuDevice::launch(const SinkForward& op) {
  const SinkForwardOperands operands{op.key_bias.as<float>(), op.hidden.as<float>(), op.features.as<float>(),
                                     op.w1.as<float>(),       op.b1.as<float>(),     op.w2.as<float>(),
                                     op.bump.as<float>(),     op.features.shape[0],  op.features.shape[1],
                                     op.hidden.shape[1],      op.key_bias.shape[0]};
  auto* memory = static_cast<float*>(workspace_.take(op));
  const std::int64_t tiles = (operands.length + tile_rows - 1) / tile_rows;
#pragma omp parallel for schedule(static)
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    float* phi = memory + omp_get_thread_num() * tile_floats(op);
    const std::int64_t first = tile * tile_rows;
    sink_forward_tile(operands, first, std::min(tile_rows, operands.length - first), phi,
                      phi + operands.width * tile_rows);
  }
}

namespace {
SIMD_CLONES double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// With x = hidden[:, m] [T] and dU [H, T]: activation = silu(x), dhidden = silu'(x) sum_h w2[h, m] dU[h],
// silu' = s (1 + x (1 - s)).
SIMD_CLONES void sink_unit_gradient(float* activation, float* dhidden, const float* x, std::int64_t x_stride,
                                    const float* dkey_bias, const float* w2, std::int64_t w2_stride,
                                    std::int64_t heads, std::int64_t rows) {
  std::fill(dhidden, dhidden + rows, 0.0f);
  for (std::int64_t h = 0; h < heads; ++h) {
    const float weight = w2[h * w2_stride];
    const float* gradient = dkey_bias + h * rows;
#pragma omp simd
    for (std::int64_t t = 0; t < rows; ++t) dhidden[t] += weight * gradient[t];
  }
#pragma omp simd
  for (std::int64_t t = 0; t < rows; ++t) {
    const float value = x[t * x_stride];
    const float s = sigmoid(value);
    activation[t] = value * s;
    dhidden[t] *= s * (1.0f + value * (1.0f - s));
  }
}

// sum[h, j] = sum of dkey_bias[b, g, j] over the batch and the heads g of group h
void sum_over_batch(const Tensor& sum, const Tensor& dkey_bias) {
  const std::int64_t batch = dkey_bias.shape[0], heads = dkey_bias.shape[1], rows = dkey_bias.shape[2],
                     count = sum.elements(), group = sum.shape[0] > 0 ? heads / sum.shape[0] : 0;
  const float* terms = dkey_bias.as<float>();
  float* sums = sum.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = i / rows * group;
    double total = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t g = first; g < first + group; ++g) total += terms[(b * heads + g) * rows + i % rows];
    sums[i] = static_cast<float>(total);
  }
}

void transpose(float* out, const float* x, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      out[column * rows + row] = x[row * columns + column];
}

struct SinkBackwardMemory {
  float* phi;    // [F, T]
  float* ones;   // [T]
  float* units;  // [threads, 2, T]: silu(hidden) and dhidden of one unit
  std::size_t bytes;

  explicit SinkBackwardMemory(const SinkBackward& op, void* workspace = nullptr) {
    const std::int64_t rows = op.features.shape[0];
    WorkspaceArrays arrays(workspace);
    phi = arrays.next<float>(op.features.shape[1] * rows);
    ones = arrays.next<float>(rows);
    units = arrays.next<float>(omp_get_max_threads() * 2 * rows);
    bytes = arrays.bytes();
  }
};
}  // namespace

std::size_t CpuDevice::workspace(const SinkBackward& op) const { return SinkBackwardMemory(op).bytes; }

// A thread owns hidden units m: row m of dw1, db1[m] and column m of dw2, so that no reduction between
// threads is needed. Sums over T are in double, because sum_j dU_j = 0 and their terms cancel. Reads
// dkey_bias once (4 B H_q T bytes). Every unit reads the other 4 T (H + n + F) bytes from cache.
void CpuDevice::launch(const SinkBackward& op) {
  const std::int64_t rows = op.features.shape[0], width = op.features.shape[1], units = op.hidden.shape[1],
                     heads = op.w2.shape[0];
  if (rows == 0) return;
  const SinkBackwardMemory memory(op, workspace_.take(op));
  sum_over_batch(op.dkey_bias_sum, op.dkey_bias);
  const float *dkey_bias = op.dkey_bias_sum.as<float>(), *hidden = op.hidden.as<float>(),
              *w2 = op.w2.as<float>();
  float *dw1 = op.dw1.as<float>(), *db1 = op.db1.as<float>(), *dw2 = op.dw2.as<float>(),
        *dbump = op.dbump.as<float>();
  for (std::int64_t h = 0; h < heads; ++h) dbump[h] += dkey_bias[h * rows];

  transpose(memory.phi, op.features.as<float>(), rows, width);
  std::fill_n(memory.ones, rows, 1.0f);
#pragma omp parallel for schedule(static)
  for (std::int64_t m = 0; m < units; ++m) {
    float* activation = memory.units + omp_get_thread_num() * 2 * rows;
    float* dhidden = activation + rows;
    sink_unit_gradient(activation, dhidden, hidden + m, units, dkey_bias, w2 + m, units, heads, rows);
    for (std::int64_t h = 0; h < heads; ++h)
      dw2[h * units + m] += static_cast<float>(dot(dkey_bias + h * rows, activation, rows));
    for (std::int64_t f = 0; f < width; ++f)
      dw1[m * width + f] += static_cast<float>(dot(memory.phi + f * rows, dhidden, rows));
    db1[m] += static_cast<float>(dot(memory.ones, dhidden, rows));
  }
}

}  // namespace goat
