// The key bias: absolute-position features phi(j), the sink MLP u~(j) = w2 silu(w1 phi + b1) + bump [j == 0],
// and its gradients.
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fourier.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

namespace {
constexpr int threads = 256, warps = threads / 32;

__global__ void __launch_bounds__(threads)
    sink_features_kernel(float* __restrict__ features, const double* __restrict__ frequency,
                         const std::int32_t* __restrict__ positions, std::int64_t rows, int modes, int axes,
                         double train_length) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x;
  if (i >= rows * (modes + 1)) return;
  const std::int64_t j = i / (modes + 1);
  const int m = static_cast<int>(i % (modes + 1));
  float* phi = features + j * (2 * modes + 2);
  if (m < modes) {
    const float2 pair = fourier_pair(frequency[m], positions[j * axes + axis_of_mode(m, modes, axes)]);
    phi[m] = pair.x;
    phi[modes + m] = pair.y;
  } else {
    const auto row = static_cast<double>(j);
    phi[2 * modes] = static_cast<float>(row / train_length);
    phi[2 * modes + 1] = static_cast<float>(log1p(row) / log1p(train_length));
  }
}
}  // namespace

// A thread writes the two features of one mode, or the last two features. Writes 4 T F bytes once a run,
// because the features depend on nothing that is learned.
void CudaDevice::launch(const SinkFeatures& op) {
  const std::int64_t rows = op.features.shape[0], modes = op.frequency.shape[0];
  if (rows == 0) return;
  enqueue(sink_features_kernel, divide_up(rows * (modes + 1), threads), threads, 0, stream_,
          data_of<float>(op.features), data_of<double>(op.frequency), data_of<std::int32_t>(op.positions),
          rows, static_cast<int>(modes), static_cast<int>(op.positions.shape[1]),
          static_cast<double>(op.train_length));
}

namespace {
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct SinkForwardArguments {
  float *key_bias, *hidden;
  const float *features, *w1, *b1, *w2, *bump;
  std::int64_t rows;        // T
  int width, units, heads;  // F, n, H
};

// Copies the 32 x 32 elements x[rows from first_row on, columns from first_column on] of a row-major
// [rows, columns]. Elements beyond the matrix become zeros. A warp copies a row.
using Tile = float[32][33];
__device__ __forceinline__ void load_tile(Tile& tile, const float* x, std::int64_t rows, int columns,
                                          std::int64_t first_row, int first_column) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = first_column + lane;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < 32; i += warps) {
    const std::int64_t row = first_row + i;
    tile[i][lane] = row < rows && column < columns ? x[row * columns + column] : 0.0f;
  }
}

// A block owns 32 positions and walks over the hidden units, 32 at a time. In the first layer a thread has
// one unit (its lane) and 4 positions. In the second layer it has one position (its lane) and every 8th head.
// The sum over the earlier units is in key_bias.
__global__ void __launch_bounds__(threads) sink_forward_kernel(const SinkForwardArguments op) {
  GOAT_SHARED(phi, Tile);         // [position][feature]
  GOAT_SHARED(weight, Tile);      // [unit][feature]
  GOAT_SHARED(activation, Tile);  // [unit][position]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * 32;
  // There is at least one step, also without units, because it writes key_bias.
  for (int first_unit = 0; first_unit < max(op.units, 1); first_unit += 32) {
    const int unit = first_unit + lane;
    float x[32 / warps];
#pragma unroll
    for (float& value : x) value = unit < op.units ? op.b1[unit] : 0.0f;
    for (int first_feature = 0; first_feature < op.width; first_feature += 32) {
      load_tile(phi, op.features, op.rows, op.width, first_row, first_feature);
      load_tile(weight, op.w1, op.units, op.width, first_unit, first_feature);
      __syncthreads();
      for (int f = 0; f < min(32, op.width - first_feature); ++f)
#pragma unroll
        for (int i = 0; i < 32 / warps; ++i) x[i] += weight[lane][f] * phi[warp + i * warps][f];
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 32 / warps; ++i) {
      const std::int64_t row = first_row + warp + i * warps;
      if (row < op.rows && unit < op.units) op.hidden[row * op.units + unit] = x[i];
      activation[lane][warp + i * warps] = x[i] * sigmoid(x[i]);
    }
    __syncthreads();
    const std::int64_t row = first_row + lane;
    for (int h = warp; h < op.heads && row < op.rows; h += warps) {
      float* bias = op.key_bias + h * op.rows + row;
      float sum = first_unit > 0 ? *bias : row == 0 ? op.bump[h] : 0.0f;
      for (int m = 0; m < min(32, op.units - first_unit); ++m)
        sum += op.w2[h * op.units + first_unit + m] * activation[m][lane];
      *bias = sum;
    }
    __syncthreads();
  }
}
}  // namespace

// Cost: 2 T n (F + H) FLOPs. Reads features, writes hidden and key_bias: 4 T (F + n + H) bytes.
void CudaDevice::launch(const SinkForward& op) {
  const SinkForwardArguments arguments{.key_bias = data_of<float>(op.key_bias),
                                       .hidden = data_of<float>(op.hidden),
                                       .features = data_of<float>(op.features),
                                       .w1 = data_of<float>(op.w1),
                                       .b1 = data_of<float>(op.b1),
                                       .w2 = data_of<float>(op.w2),
                                       .bump = data_of<float>(op.bump),
                                       .rows = op.features.shape[0],
                                       .width = static_cast<int>(op.features.shape[1]),
                                       .units = static_cast<int>(op.hidden.shape[1]),
                                       .heads = static_cast<int>(op.key_bias.shape[0])};
  if (arguments.rows == 0) return;
  enqueue(sink_forward_kernel, divide_up(arguments.rows, 32), threads, 0, stream_, arguments);
}

namespace {
struct SinkBackwardArguments {
  float *dw1, *db1, *dw2;
  const float *dkey_bias, *hidden, *features, *w2;  // dkey_bias [H, T], summed
  std::int64_t rows;                                // T
  int width, units, heads;                          // F, n, H
  // Sums over a partition of the rows, [F + 1 + H, n, partitions]: dw1^T, db1, dw2.
  double* partial = nullptr;
  int partitions = 0;
  std::int64_t partition_rows = 0;
};

// sum[h, j] = sum of dkey_bias[b, g, j] over the batch and the `group` heads g of group h;
// dbump[h] += sum[h, 0]. A thread owns (h, j).
__global__ void __launch_bounds__(threads)
    sum_over_batch_kernel(float* __restrict__ sum, float* __restrict__ dbump,
                          const float* __restrict__ dkey_bias, int batch, int heads, int group,
                          std::int64_t rows) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x, count = heads * rows;
  if (i >= count) return;
  const float* from = dkey_bias + i / rows * group * rows + i % rows;
  double total = 0;
  for (int g = 0; g < group; ++g)
#pragma unroll 8
    for (int b = 0; b < batch; ++b) total += from[b * count * group + g * rows];
  sum[i] = static_cast<float>(total);
  if (i % rows == 0) dbump[i / rows] += static_cast<float>(total);
}

constexpr int tile_rows = 64;
using UnitTile = float[32][tile_rows + 1];  // [unit][row]

// For 32 units (one a lane) and tile_rows rows:
//   activation = silu(x),  dhidden = silu'(x) sum_h w2[h] dU[h],  silu' = s (1 + x (1 - s)).
// Elements beyond the units or rows are zeros.
__device__ __forceinline__ void unit_gradients(UnitTile& activation, UnitTile& dhidden,
                                               const SinkBackwardArguments& op, int unit,
                                               std::int64_t first_row, std::int64_t last_row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < tile_rows; i += warps) {
    const std::int64_t row = first_row + i;
    const bool inside = row < last_row && unit < op.units;
    float gradient = 0;
    for (int h = 0; h < op.heads && inside; ++h)
      gradient += op.w2[h * op.units + unit] * op.dkey_bias[h * op.rows + row];
    const float x = inside ? op.hidden[row * op.units + unit] : 0.0f, s = sigmoid(x);
    activation[lane][i] = x * s;
    dhidden[lane][i] = gradient * s * (1.0f + x * (1.0f - s));
  }
}

// The factor of a unit's terms at `row`: element `column` of (phi, 1, dU), which has F + 1 + H elements.
__device__ __forceinline__ float column_element(const SinkBackwardArguments& op, std::int64_t row,
                                                int column) {
  if (column < op.width) return op.features[row * op.width + column];
  return column == op.width ? 1.0f : op.dkey_bias[(column - op.width - 1) * op.rows + row];
}

// Block (p, g) sums over the rows of partition p for the units from 32 g on. A thread has one unit (its lane)
// and every 8th of the F + 1 + H columns.
__global__ void __launch_bounds__(threads) sink_backward_kernel(const SinkBackwardArguments op) {
  GOAT_SHARED(activation, UnitTile);
  GOAT_SHARED(dhidden, UnitTile);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int unit = static_cast<int>(blockIdx.y) * 32 + lane;
  const std::int64_t begin = blockIdx.x * op.partition_rows, end = min(op.rows, begin + op.partition_rows);
  for (std::int64_t first_row = begin; first_row < end; first_row += tile_rows) {
    unit_gradients(activation, dhidden, op, unit, first_row, end);
    __syncthreads();
    const int count = static_cast<int>(min(static_cast<std::int64_t>(tile_rows), end - first_row));
    for (int column = warp; column < op.width + 1 + op.heads && unit < op.units; column += warps) {
      double* partial =
          op.partial + (static_cast<std::int64_t>(column) * op.units + unit) * op.partitions + blockIdx.x;
      const float* unit_terms = column <= op.width ? dhidden[lane] : activation[lane];
      double sum = first_row == begin ? 0 : *partial;
#pragma unroll 4
      for (int i = 0; i < count; ++i)
        sum += static_cast<double>(unit_terms[i]) * column_element(op, first_row + i, column);
      *partial = sum;
    }
    __syncthreads();
  }
}

// A warp adds up the partitions of one element of dw1, db1 or dw2.
__global__ void __launch_bounds__(threads) finish_sink_gradients_kernel(const SinkBackwardArguments op) {
  const std::int64_t output = blockIdx.x * static_cast<std::int64_t>(warps) + threadIdx.x / 32;
  const int column = static_cast<int>(output / op.units), unit = static_cast<int>(output % op.units);
  if (column >= op.width + 1 + op.heads) return;  // the condition is the same for the whole warp
  const auto total = static_cast<float>(warp_total(op.partial + output * op.partitions, op.partitions));
  if (threadIdx.x % 32 != 0) return;
  if (column < op.width)
    op.dw1[static_cast<std::int64_t>(unit) * op.width + column] += total;
  else if (column == op.width)
    op.db1[unit] += total;
  else
    op.dw2[static_cast<std::int64_t>(column - op.width - 1) * op.units + unit] += total;
}
}  // namespace

namespace {
// The rows of a block of sink_backward_kernel. There are at most 256 partitions, depending on T alone.
std::int64_t rows_of_partition(std::int64_t rows) { return tile_rows * divide_up(rows, 256 * tile_rows); }
std::int64_t partitions_of(std::int64_t rows) {
  return rows > 0 ? divide_up(rows, rows_of_partition(rows)) : 0;
}
// The elements of dw1, db1 and dw2.
std::int64_t outputs_of(const SinkBackward& op) {
  return op.dw1.elements() + op.db1.elements() + op.dw2.elements();
}
}  // namespace

// [outputs, partitions]: the parts of the gradients.
std::size_t CudaDevice::workspace(const SinkBackward& op) const {
  return static_cast<std::size_t>(outputs_of(op) * partitions_of(op.features.shape[0])) * sizeof(double);
}

// Sums over T are in double, because sum_j dU_j = 0 makes their terms cancel. Reads dkey_bias once
// (4 B H_q T bytes). The other arrays (4 T (H + n + F) bytes) are read a few times from cache.
void CudaDevice::launch(const SinkBackward& op) {
  SinkBackwardArguments arguments{.dw1 = data_of<float>(op.dw1),
                                  .db1 = data_of<float>(op.db1),
                                  .dw2 = data_of<float>(op.dw2),
                                  .dkey_bias = data_of<float>(op.dkey_bias_sum),
                                  .hidden = data_of<float>(op.hidden),
                                  .features = data_of<float>(op.features),
                                  .w2 = data_of<float>(op.w2),
                                  .rows = op.features.shape[0],
                                  .width = static_cast<int>(op.features.shape[1]),
                                  .units = static_cast<int>(op.hidden.shape[1]),
                                  .heads = static_cast<int>(op.w2.shape[0]),
                                  .partial = static_cast<double*>(workspace_.take(op))};
  const std::int64_t sums = op.dkey_bias_sum.elements(), outputs = outputs_of(op);
  if (sums == 0) return;
  enqueue(sum_over_batch_kernel, divide_up(sums, threads), threads, 0, stream_,
          data_of<float>(op.dkey_bias_sum), data_of<float>(op.dbump), data_of<float>(op.dkey_bias),
          static_cast<int>(op.dkey_bias.shape[0]), arguments.heads,
          static_cast<int>(op.dkey_bias.shape[1]) / arguments.heads, arguments.rows);
  if (outputs == 0) return;
  arguments.partition_rows = rows_of_partition(arguments.rows);
  arguments.partitions = static_cast<int>(partitions_of(arguments.rows));
  enqueue(sink_backward_kernel, Grid(arguments.partitions, divide_up(arguments.units, 32)), threads, 0,
          stream_, arguments);
  enqueue(finish_sink_gradients_kernel, divide_up(outputs, warps), threads, 0, stream_, arguments);
}

}  // namespace goat::GOAT_TARGET
