// LayerNorm (centred = true) and RMSNorm (centred = false), with the residual connection before them:
//   out = y weight + bias,  y = (sum - mean) rstd.
// RMSNorm has mean = 0 and no bias. weight, bias and their gradients are f32 for every element type T of the
// rows.
#pragma once

#include <algorithm>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

namespace goat::GOAT_TARGET {

// How a row is distributed over `row_warps` warps: thread t processes the packs t, t + 32 row_warps, ... It
// keeps up to `held` packs in registers. With held = 0 a row may have any number of packs, and every pass
// over the row reads them again. A block of `threads` threads processes `rows` rows side by side.
template <class T, int elements, int row_warps, int held_packs>
struct RowLayout {
  static constexpr int warps = row_warps, held = held_packs;
  static constexpr int row_threads = 32 * warps;
  static constexpr int threads = warps < 4 ? 128 : row_threads;
  static constexpr int rows = threads / row_threads;
  static constexpr int held_width = held * row_threads * elements;  // the widest row that fits in registers
  using Part = Pack<T, elements>;
  using Parameters = Pack<float, elements>;  // of weight or bias, for the columns of a Part

  // Calls body(i, c) for the i-th pack of this thread, which begins at column c.
  template <class Body>
  static __device__ __forceinline__ void for_each(int width, Body body) {
    const int first = static_cast<int>(threadIdx.x % row_threads) * elements;
    if constexpr (held > 0) {
#pragma unroll
      for (int i = 0; i < held; ++i)
        if (first + i * row_threads * elements < width) body(i, first + i * row_threads * elements);
    } else {
      for (int c = first; c < width; c += row_threads * elements) body(0, c);
    }
  }

  // Returns the sums of value.x and value.y over the row to every thread of the row.
  static __device__ __forceinline__ float2 sum(float2 value) {
    value.x = warp_sum(value.x);
    value.y = warp_sum(value.y);
    if constexpr (warps > 1) {
      GOAT_SHARED(partial, float2[warps]);
      __syncthreads();  // other warps may still read the sums of the previous call
      if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
      __syncthreads();
      value = partial[0];
#pragma unroll
      for (int warp = 1; warp < warps; ++warp) value.x += partial[warp].x, value.y += partial[warp].y;
    }
    return value;
  }
};

// Calls body(layout) with the layout for rows of `width` elements. A warp takes a row of up to 4 vectors a
// thread; a block takes a wider row. Rows that cannot be read in vectors or do not fit in registers use the
// layout with held = 0.
template <class T, class Body>
void with_row_layout(bool vectors, std::int64_t width, Body&& body) {
  constexpr int size = Vector<T>::size;
  const std::int64_t count = divide_up(width, size);
  if (!vectors || count > 2 * 512)
    body(RowLayout<T, 1, 4, 0>{});
  else if (count <= 2 * 32)
    body(RowLayout<T, size, 1, 2>{});
  else if (count <= 3 * 32)
    body(RowLayout<T, size, 1, 3>{});
  else if (count <= 4 * 32)
    body(RowLayout<T, size, 1, 4>{});
  else if (count <= 2 * 128)
    body(RowLayout<T, size, 4, 2>{});
  else if (count <= 4 * 128)
    body(RowLayout<T, size, 4, 4>{});
  else
    body(RowLayout<T, size, 16, 2>{});
}

template <class T>
struct NormForward {
  T *out, *sum;
  float *mean, *rstd;
  const T *x, *residual;
  const float *weight, *bias;
  std::int64_t rows;
  int width;
  float eps;
};

// mean = centre + shift. With two floats nothing is lost in x - mean, even if the mean is far larger than the
// standard deviation. The second pass computes deviations from the rounded mean, so it also measures the
// rounding error of the mean.
struct RowStatistics {
  float centre, shift, rstd;
};

template <class Layout, bool centred, class Element>
__device__ __forceinline__ RowStatistics row_statistics(int width, float eps, Element element) {
  const float count = static_cast<float>(width);
  float centre = 0;
  if constexpr (centred) {
    float total = 0;
    Layout::for_each(width, [&](int i, int c) {
      const auto values = element(i, c);
#pragma unroll
      for (int e = 0; e < values.size; ++e) total += values[e];
    });
    centre = Layout::sum({total, 0.0f}).x / count;
  }
  float2 moments{0.0f, 0.0f};  // first and second moment of the deviations
  Layout::for_each(width, [&](int i, int c) {
    const auto values = element(i, c);
#pragma unroll
    for (int e = 0; e < values.size; ++e) {
      const float deviation = values[e] - centre;
      if constexpr (centred) moments.x += deviation;
      moments.y += deviation * deviation;
    }
  });
  moments = Layout::sum(moments);
  const float shift = moments.x / count;
  const float variance = moments.y / count - shift * shift;
  // fmaxf would replace a NaN by 0; this expression keeps it.
  return {centre, shift, rsqrtf((variance < 0 ? 0.0f : variance) + eps)};
}

template <class T, bool centred, class Layout>
__global__ void __launch_bounds__(Layout::threads) norm_forward_kernel(NormForward<T> op) {
  using Part = typename Layout::Part;
  using Parameters = typename Layout::Parameters;
  const std::int64_t row = std::int64_t{blockIdx.x} * Layout::rows + threadIdx.x / Layout::row_threads;
  if (Layout::warps == 1 && row >= op.rows) return;  // a whole warp returns; this kernel has no barriers then
  const std::int64_t start = row * op.width;
  const T* source = (op.residual ? op.sum : op.x) + start;

  Part kept[Layout::held > 0 ? Layout::held : 1];
  Layout::for_each(op.width, [&](int i, int c) {
    if (Layout::held == 0 && !op.residual) return;
    Part values = Part::load(op.x + start + c);
    if (op.residual) {
      const Part other = Part::load(op.residual + start + c);
#pragma unroll
      for (int e = 0; e < Part::size; ++e) values.set(e, values[e] + other[e]);
      values.store(op.sum + start + c);
    }
    kept[i] = values;
  });
  // An element of the rounded sum.
  const auto element = [&](int i, int c) {
    if constexpr (Layout::held > 0)
      return kept[i];
    else
      return Part::load(source + c);  // this thread has written these elements
  };
  const RowStatistics s = row_statistics<Layout, centred>(op.width, op.eps, element);

  Layout::for_each(op.width, [&](int i, int c) {
    const Part values = element(i, c);
    const Parameters weight = Parameters::load(op.weight + c);
    Parameters bias{};
    if constexpr (centred) bias = Parameters::load(op.bias + c);
    Part out;
#pragma unroll
    for (int e = 0; e < Part::size; ++e) {
      const float y = ((values[e] - s.centre) - s.shift) * s.rstd;
      out.set(e, centred ? y * weight[e] + bias[e] : y * weight[e]);
    }
    out.store(op.out + start + c);
  });
  if (threadIdx.x % Layout::row_threads == 0) {
    if constexpr (centred) op.mean[row] = s.centre + s.shift;
    op.rstd[row] = s.rstd;
  }
}

template <class T, bool centred>
void enqueue_norm_forward(Stream stream, const NormForward<T>& op) {
  if (op.rows == 0) return;
  const bool vectors =
      vectorizable(op.x, op.width) && aligned_to_16(op.out, op.sum, op.residual, op.weight, op.bias);
  with_row_layout<T>(vectors, op.width, [&]<class Layout>(Layout) {
    enqueue(norm_forward_kernel<T, centred, Layout>, divide_up(op.rows, Layout::rows), Layout::threads, 0,
            stream, op);
  });
}

// ------------------------------------------------------------------------------------------------- backward
// With g = dout weight and <.> the mean over the row:
//   dsum += rstd (g - <g> - y <g y>)  (RMSNorm: without <g>),   dweight += dout y,   dbias += dout.
template <class T>
struct NormBackward {
  T* dsum;
  float *dweight, *dbias;
  const T *dout, *sum;
  const float *weight, *mean, *rstd;
  std::int64_t rows;
  int width;
};

// A block takes this many rows: 4, or more if there are more than 512 blocks otherwise, one wave on the
// largest GPUs. The limit is a constant, because the order of the sums must not depend on the GPU.
inline std::int64_t norm_block_rows(std::int64_t rows) {
  return std::max<std::int64_t>(4, divide_up(rows, 512));
}
inline std::int64_t norm_blocks(std::int64_t rows) { return divide_up(rows, norm_block_rows(rows)); }

// The bytes of the blocks' partial sums: [blocks, dweight and (centred) dbias, C] floats.
template <bool centred>
std::size_t norm_partials_bytes(std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(norm_blocks(rows) * (centred ? 2 : 1) * width) * sizeof(float);
}

// The bytes of dynamic shared memory of a block. They hold the gradients of the parameters where the block
// processes several rows side by side.
template <class Layout, bool centred>
constexpr int norm_backward_shared_bytes =
    Layout::rows > 1 ? (centred ? 2 : 1) * Layout::held_width* static_cast<int>(sizeof(float)) : 0;

// A group of row_warps warps takes one row at a time. The gradients of the parameters stay in registers; with
// held = 0 they stay in the block's part of `partials`.
template <class T, bool centred, class Layout>
__global__ void __launch_bounds__(Layout::threads)
    norm_backward_kernel(NormBackward<T> op, float* partials, std::int64_t block_rows) {
  state_dynamic_shared<norm_backward_shared_bytes<Layout, centred>>();
  using Part = typename Layout::Part;
  using Parameters = typename Layout::Parameters;
  constexpr int held = Layout::held > 0 ? Layout::held : 1, gradients = centred ? 2 : 1;
  const int width = op.width;
  // [gradients, C]: dweight, dbias.
  float* block_partial = partials + std::int64_t{blockIdx.x} * gradients * width;
  const std::int64_t first = std::int64_t{blockIdx.x} * block_rows,
                     last = first + block_rows < op.rows ? first + block_rows : op.rows;

  float dweight[held][Part::size] = {}, dbias[held][Part::size] = {};
  const int group = static_cast<int>(threadIdx.x) / Layout::row_threads;
  for (std::int64_t row = first + group; row < last; row += Layout::rows) {
    const std::int64_t start = row * width;
    const float mean = centred ? op.mean[row] : 0.0f, rstd = op.rstd[row];
    Part douts[held], sums[held], dsums[held];
    const auto load = [&](int i, int c) {
      douts[i] = Part::load(op.dout + start + c);
      sums[i] = Part::load(op.sum + start + c);
      dsums[i] = Part::load(op.dsum + start + c);
    };
    float2 totals{0.0f, 0.0f};
    // All loads are issued before the first value is used.
    if constexpr (Layout::held > 0) Layout::for_each(width, load);
    Layout::for_each(width, [&](int i, int c) {
      if constexpr (Layout::held == 0) load(i, c);
      const Parameters weight = Parameters::load(op.weight + c);
#pragma unroll
      for (int e = 0; e < Part::size; ++e) {
        const float g = douts[i][e] * weight[e];
        if constexpr (centred) totals.x += g;
        totals.y += g * ((sums[i][e] - mean) * rstd);
      }
    });
    totals = Layout::sum(totals);
    const float g_mean = totals.x / static_cast<float>(width), gy_mean = totals.y / static_cast<float>(width);
    Layout::for_each(width, [&](int i, int c) {
      if constexpr (Layout::held == 0) load(i, c);
      const Parameters weight = Parameters::load(op.weight + c);
#pragma unroll
      for (int e = 0; e < Part::size; ++e) {
        const float d = douts[i][e], y = (sums[i][e] - mean) * rstd;
        dsums[i].set(e, dsums[i][e] + rstd * (d * weight[e] - g_mean - y * gy_mean));
        if constexpr (Layout::held > 0) {
          dweight[i][e] += d * y;
          if constexpr (centred) dbias[i][e] += d;
        } else {
          float* at = block_partial + c + e;
          at[0] = (row == first ? 0.0f : at[0]) + d * y;
          if constexpr (centred) at[width] = (row == first ? 0.0f : at[width]) + d;
        }
      }
      dsums[i].store(op.dsum + start + c);
    });
  }

  // The groups of warps that process rows side by side add their gradients in a fixed order.
  if constexpr (Layout::held > 0) {
    for (int turn = 0; turn < Layout::rows; ++turn) {
      float* sofar = dynamic_shared<float>();
      if (group == turn) {
        float* to = turn == Layout::rows - 1 ? block_partial : sofar;
        Layout::for_each(width, [&](int i, int c) {
#pragma unroll
          for (int e = 0; e < Part::size; ++e) {
            to[c + e] = (turn == 0 ? 0.0f : sofar[c + e]) + dweight[i][e];
            if constexpr (centred)
              to[width + c + e] = (turn == 0 ? 0.0f : sofar[width + c + e]) + dbias[i][e];
          }
        });
      }
      if constexpr (Layout::rows > 1) __syncthreads();
    }
  }
}

// dweight and dbias += the blocks' partial sums, computed in double. Slice s of 16 sums the blocks s, s + 16,
// ... in this order; then the slices are added in their order. A thread takes one column of a slice. partials
// is [blocks, columns].
constexpr int slices = 16;
template <bool centred>
__global__ void __launch_bounds__(32 * slices)
    norm_add_partials_kernel(float* dweight, float* dbias, const float* partials, std::int64_t blocks,
                             int width) {
  GOAT_SHARED(sums, double[slices][32]);
  const int columns = (centred ? 2 : 1) * width;
  const int lane = static_cast<int>(threadIdx.x) % 32, slice = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  double sum = 0;
  if (column < columns)
    for (std::int64_t block = slice; block < blocks; block += slices)
      sum += static_cast<double>(partials[block * columns + column]);
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice == 0 && column < columns) {
    float* to = column < width ? dweight + column : dbias + (column - width);
    double total = 0;
    for (int i = 0; i < slices; ++i) total += sums[i][lane];
    *to = static_cast<float>(static_cast<double>(*to) + total);
  }
}

// `partials`: memory of norm_partials_bytes().
template <class T, bool centred>
void enqueue_norm_backward(Stream stream, const NormBackward<T>& op, float* partials) {
  if (op.rows == 0) return;
  const int columns = (centred ? 2 : 1) * op.width;
  const bool vectors = vectorizable(op.dout, op.width) && aligned_to_16(op.dsum, op.sum, op.weight);
  with_row_layout<T>(vectors, op.width, [&]<class Layout>(Layout) {
    enqueue(norm_backward_kernel<T, centred, Layout>, norm_blocks(op.rows), Layout::threads,
            norm_backward_shared_bytes<Layout, centred>, stream, op, partials, norm_block_rows(op.rows));
  });
  enqueue(norm_add_partials_kernel<centred>, divide_up(columns, 32), 32 * slices, 0, stream, op.dweight,
          op.dbias, partials, norm_blocks(op.rows), op.width);
}

}  // namespace goat::GOAT_TARGET
