// LayerNorm (centred = true) and RMSNorm (centred = false) with the residual connection in front of them:
//   out = y weight + bias,  y = (sum - mean) rstd,  and for RMSNorm mean = 0 and no bias.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

namespace goat::GOAT_TARGET {

// How a row is spread over `row_warps` warps: thread t works on packs t, t + 32 row_warps, ... It holds up to
// `held` of them in registers; held = 0: any number, which it reads again at each pass over the row. A block
// of `threads` works on `rows` rows at a time.
template <class T, int elements, int row_warps, int held_packs>
struct RowLayout {
  static constexpr int warps = row_warps, held = held_packs;
  static constexpr int row_threads = 32 * warps;
  static constexpr int threads = warps < 4 ? 128 : row_threads;
  static constexpr int rows = threads / row_threads;
  static constexpr int held_width = held * row_threads * elements;  // the widest row that is held
  using Part = Pack<T, elements>;

  // Calls body(i, c) for the i-th pack of this thread, which starts at column c.
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

  // Every thread of the row receives the two sums over it.
  static __device__ __forceinline__ float2 sum(float2 value) {
    value.x = warp_sum(value.x);
    value.y = warp_sum(value.y);
    if constexpr (warps > 1) {
      GOAT_SHARED(partial, float2[warps]);
      __syncthreads();  // an earlier call may still be read
      if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
      __syncthreads();
      value = partial[0];
#pragma unroll
      for (int warp = 1; warp < warps; ++warp) value.x += partial[warp].x, value.y += partial[warp].y;
    }
    return value;
  }
};

// Calls body(layout) with the layout for rows of `width`: a warp a row up to 4 vectors a thread, then a block
// a row. Whatever cannot be read in vectors, or is too wide to be held, takes the last one.
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
  const T *x, *residual, *weight, *bias;
  std::int64_t rows;
  int width;
  float eps;
};

// mean = centre + shift: two floats, so that a mean far larger than the standard deviation loses nothing when
// it is subtracted. The second pass, about the rounded mean, also measures what the rounding lost.
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
  float2 moments{0.0f, 0.0f};  // of the deviations: first, second
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
  return {centre, shift,
          rsqrtf((variance < 0 ? 0.0f : variance) + eps)};  // not fmaxf, which would lose a NaN
}

template <class T, bool centred, class Layout>
__global__ void __launch_bounds__(Layout::threads) norm_forward_kernel(NormForward<T> op) {
  using Part = typename Layout::Part;
  const std::int64_t row = std::int64_t{blockIdx.x} * Layout::rows + threadIdx.x / Layout::row_threads;
  if (Layout::warps == 1 && row >= op.rows) return;  // a whole warp, in a kernel without barriers
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
  const auto element = [&](int i, int c) {  // of the sum, as rounded
    if constexpr (Layout::held > 0)
      return kept[i];
    else
      return Part::load(source + c);  // what this thread wrote
  };
  const RowStatistics s = row_statistics<Layout, centred>(op.width, op.eps, element);

  Layout::for_each(op.width, [&](int i, int c) {
    const Part values = element(i, c), weight = Part::load(op.weight + c);
    Part bias{};
    if constexpr (centred) bias = Part::load(op.bias + c);
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
  static constexpr std::int64_t most_blocks =
      512;  // one wave of the largest GPUs; depends on nothing, as the order of the sums must not

  T *dsum, *dweight, *dbias;
  const T *dout, *sum, *weight;
  const float *mean, *rstd;
  std::int64_t rows;
  int width;

  std::int64_t block_rows() const {
    return divide_up(rows, most_blocks) < 4 ? 4 : divide_up(rows, most_blocks);
  }
  std::int64_t blocks() const { return divide_up(rows, block_rows()); }
};

// The block's dynamic shared memory: the gradients of the parameters, where rows are worked on side by side.
template <class Layout, bool centred>
constexpr int norm_backward_shared_bytes =
    Layout::rows > 1 ? (centred ? 2 : 1) * Layout::held_width* static_cast<int>(sizeof(float)) : 0;

// A row at a time; the gradients of the parameters stay in registers (held = 0: in the block's part of
// `partials`).
template <class T, bool centred, class Layout>
__global__ void __launch_bounds__(Layout::threads)
    norm_backward_kernel(NormBackward<T> op, float* partials, std::int64_t block_rows) {
  state_dynamic_shared<norm_backward_shared_bytes<Layout, centred>>();
  using Part = typename Layout::Part;
  constexpr int held = Layout::held > 0 ? Layout::held : 1, gradients = centred ? 2 : 1;
  const int width = op.width;
  float* block_partial =
      partials + std::int64_t{blockIdx.x} * gradients * width;  // [gradients, C]: dweight, dbias
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
    if constexpr (Layout::held > 0) Layout::for_each(width, load);  // all of them before the first is used
    Layout::for_each(width, [&](int i, int c) {
      if constexpr (Layout::held == 0) load(i, c);
      const Part weight = Part::load(op.weight + c);
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
      const Part weight = Part::load(op.weight + c);
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

  if constexpr (Layout::held >
                0) {  // the rows of the block that were worked on side by side are added in their order
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

// dweight and dbias += the blocks' partial sums, in the order of the blocks within each of 16 interleaved
// slices, then of the slices; in double. A thread takes a column of a slice; partials is [blocks, columns].
constexpr int slices = 16;
template <class T>
__global__ void __launch_bounds__(32 * slices)
    norm_add_partials_kernel(T* dweight, T* dbias, const float* partials, std::int64_t blocks, int width,
                             int columns) {
  GOAT_SHARED(sums, double[slices][32]);
  const int lane = static_cast<int>(threadIdx.x) % 32, slice = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  double sum = 0;
  if (column < columns)
    for (std::int64_t block = slice; block < blocks; block += slices)
      sum += static_cast<double>(partials[block * columns + column]);
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice == 0 && column < columns) {
    T* to = column < width ? dweight + column : dbias + (column - width);
    double total = 0;
    for (int i = 0; i < slices; ++i) total += sums[i][lane];
    *to = from_float<T>(static_cast<float>(static_cast<double>(to_float(*to)) + total));
  }
}

// `partials`: at least blocks() * (centred ? 2 : 1) * width floats.
template <class T, bool centred>
void enqueue_norm_backward(Stream stream, const NormBackward<T>& op, float* partials) {
  if (op.rows == 0) return;
  const int columns = (centred ? 2 : 1) * op.width;
  const bool vectors = vectorizable(op.dout, op.width) && aligned_to_16(op.dsum, op.sum, op.weight);
  with_row_layout<T>(vectors, op.width, [&]<class Layout>(Layout) {
    enqueue(norm_backward_kernel<T, centred, Layout>, op.blocks(), Layout::threads,
            norm_backward_shared_bytes<Layout, centred>, stream, op, partials, op.block_rows());
  });
  enqueue(norm_add_partials_kernel<T>, divide_up(columns, 32), 32 * slices, 0, stream, op.dweight, op.dbias,
          partials, op.blocks(), op.width, columns);
}

}  // namespace goat::GOAT_TARGET
