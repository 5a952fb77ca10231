// Products of fp32 tiles in shared memory, for the attention kernels without tensor cores.
//
// A warp owns rows_of_warp rows of a tile of scores. Its threads form a grid of 4 x 8: a thread has the
// `row_count` rows lane/8 + 4i and the columns lane%8 + 8j. So no other warp uses a row. A sum over a
// row needs only shuffles among 8 lanes, and the weights for the next product are in shared memory that
// only this warp uses.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/cuda/attention/attention_heads.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

__device__ __forceinline__ int thread_row() { return static_cast<int>(threadIdx.x) % 32 / 8; }
__device__ __forceinline__ int thread_column() { return static_cast<int>(threadIdx.x) % 8; }

// The sum (maximum) over a row. Each of the row's 8 threads receives it.
__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) value += __shfl_xor_sync(all_lanes, value, offset);
  return value;
}
__device__ __forceinline__ float row_max(float value) {
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, offset));
  return value;
}

// The shape of a tile. Rows in shared memory are padded by 16 bytes. The 16-byte accesses of 8 rows at one
// coordinate then use different groups of banks. Weights are [rows, weight_stride]. The stride is 8 modulo
// 16, so that the 32 scalars that a warp writes together are in different banks.
template <int D, int rows_of_thread, int columns_of_thread, int warp_count>
struct FfmaShape {
  static constexpr int head_dim = D, row_count = rows_of_thread, column_count = columns_of_thread,
                       warps = warp_count;
  static constexpr int threads = 32 * warps, rows_of_warp = 4 * row_count, rows = rows_of_warp * warps,
                       columns = 8 * column_count;
  static constexpr int row_stride = D + 4, weight_stride = columns + (columns % 16 == 0 ? 8 : 0);
  static constexpr int row_floats = rows * row_stride, column_floats = columns * row_stride,
                       weight_floats = rows * weight_stride;
  // The number of float4 of a row that a thread accumulates: the coordinates from 4 (lane % 8) + 32 k on.
  static constexpr int vectors = D / 32;

  static __device__ __forceinline__ int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 * rows_of_warp;
  }
};

// Copies rows [first, first + row_count) of `source`, converted to fp32. All threads call this. Rows from
// `limit` on and coordinates from head_dim on become zeros.
template <class Shape, int row_count, class T>
__device__ __forceinline__ void load_rows(float* tile, HeadRows<const T> source, int first, int limit,
                                          int head_dim, bool aligned) {
  constexpr int size = Vector<T>::size, chunks = Shape::head_dim / size;
  if (aligned) {
#pragma unroll 4
    for (int n = threadIdx.x; n < row_count * chunks; n += Shape::threads) {
      const int row = n / chunks, c = n % chunks * size;
      Vector<T> values;
      for (T& element : values.element) element = from_float<T>(0.0f);
      if (first + row < limit && c < head_dim) values = Vector<T>::load(source.row(first + row) + c);
#pragma unroll
      for (int i = 0; i < size; i += 4)
        *reinterpret_cast<float4*>(tile + row * Shape::row_stride + c + i) =
            make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  } else {
#pragma unroll 4
    for (int n = threadIdx.x; n < row_count * Shape::head_dim; n += Shape::threads) {
      const int row = n / Shape::head_dim, c = n % Shape::head_dim;
      tile[row * Shape::row_stride + c] =
          first + row < limit && c < head_dim ? to_float(source.row(first + row)[c]) : 0.0f;
    }
  }
}

template <class Shape>
using Scores = float[Shape::row_count][Shape::column_count];

// scores[i][j] = <row i of the thread, column j of the thread>. Coordinates are added up in ascending order.
template <class Shape>
__device__ __forceinline__ void multiply_rows(Scores<Shape>& scores, const float* rows, const float* columns,
                                              int head_dim) {
  const float* row = rows + (Shape::warp_row() + thread_row()) * Shape::row_stride;
  const float* column = columns + thread_column() * Shape::row_stride;
#pragma unroll
  for (int i = 0; i < Shape::row_count; ++i)
#pragma unroll
    for (int j = 0; j < Shape::column_count; ++j) scores[i][j] = 0;
// Registers are short for D > 64.
#pragma unroll(Shape::head_dim <= 64 ? 2 : 1)
  for (int c = 0; c < head_dim; c += 4) {  // the tile has zeros from head_dim on
    float4 left[Shape::row_count], right[Shape::column_count];
#pragma unroll
    for (int i = 0; i < Shape::row_count; ++i)
      left[i] = *reinterpret_cast<const float4*>(row + 4 * i * Shape::row_stride + c);
#pragma unroll
    for (int j = 0; j < Shape::column_count; ++j)
      right[j] = *reinterpret_cast<const float4*>(column + 8 * j * Shape::row_stride + c);
#pragma unroll
    for (int i = 0; i < Shape::row_count; ++i)
#pragma unroll
      for (int j = 0; j < Shape::column_count; ++j) {
        scores[i][j] += left[i].x * right[j].x;
        scores[i][j] += left[i].y * right[j].y;
        scores[i][j] += left[i].z * right[j].z;
        scores[i][j] += left[i].w * right[j].w;
      }
  }
}

// The bias of a head's keys, counted from the bias at one position of the block's rows, so that fp32 holds
// the differences well. Without a key bias nothing is added to anything.
struct BlockBias {
  const double* keys = nullptr;  // of the head
  int base = 0;                  // the position
  double unit = 1;               // 1 / scale

  template <class Arguments>
  __device__ __forceinline__ BlockBias(const Arguments& arguments, int sequence, int head, int position)
      : base(position), unit(1.0 / static_cast<double>(arguments.scale)) {
    if (arguments.key_bias.data) keys = arguments.key_bias.keys(sequence, head);
  }

  // What `key` adds to its logits, and what a query at this position adds to its lse.
  __device__ __forceinline__ float at(int key) const { return static_cast<float>(keys[key] - keys[base]); }
  // The same in units of the scores, which are multiplied by scale afterwards.
  __device__ __forceinline__ float score_at(int key) const {
    return static_cast<float>((keys[key] - keys[base]) * unit);
  }

  // Adds the bias of the thread's keys, which are the rows (or the columns) of the scores: those from
  // first_key on, every 4th (8th), as far as they are below `limit`.
  template <class Shape>
  __device__ __forceinline__ void add_to_rows(Scores<Shape>& scores, int first_key, int limit) const {
    if (!keys) return;
#pragma unroll
    for (int i = 0; i < Shape::row_count; ++i) {
      const float term = first_key + 4 * i < limit ? score_at(first_key + 4 * i) : 0.0f;
#pragma unroll
      for (int j = 0; j < Shape::column_count; ++j) scores[i][j] += term;
    }
  }
  template <class Shape>
  __device__ __forceinline__ void add_to_columns(Scores<Shape>& scores, int first_key, int limit) const {
    if (!keys) return;
#pragma unroll
    for (int j = 0; j < Shape::column_count; ++j) {
      const float term = first_key + 8 * j < limit ? score_at(first_key + 8 * j) : 0.0f;
#pragma unroll
      for (int i = 0; i < Shape::row_count; ++i) scores[i][j] += term;
    }
  }
};

// Stores scores in the layout of the next product's weights. A __syncwarp() must come before they are read.
template <class Shape>
__device__ __forceinline__ void store_weights(float* weights, const Scores<Shape>& scores) {
  float* row = weights + (Shape::warp_row() + thread_row()) * Shape::weight_stride + thread_column();
#pragma unroll
  for (int i = 0; i < Shape::row_count; ++i)
#pragma unroll
    for (int j = 0; j < Shape::column_count; ++j) row[4 * i * Shape::weight_stride + 8 * j] = scores[i][j];
}

template <class Shape>
using Accumulators = float4[Shape::row_count][Shape::vectors];

// sums[row] += sum_j weights[row][j] values[j], j ascending.
template <class Shape>
__device__ __forceinline__ void multiply_weights(Accumulators<Shape>& sums, const float* weights,
                                                 const float* values) {
  const float* weight_row = weights + (Shape::warp_row() + thread_row()) * Shape::weight_stride;
  const float* value = values + 4 * thread_column();
#pragma unroll 1
  for (int j = 0; j < Shape::columns; j += 4) {
    float weight[Shape::row_count][4];
#pragma unroll
    for (int i = 0; i < Shape::row_count; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(weight_row + 4 * i * Shape::weight_stride + j);
      weight[i][0] = four.x, weight[i][1] = four.y, weight[i][2] = four.z, weight[i][3] = four.w;
    }
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int k = 0; k < Shape::vectors; ++k) {
        const float4 right =
            *reinterpret_cast<const float4*>(value + (j + step) * Shape::row_stride + 32 * k);
#pragma unroll
        for (int i = 0; i < Shape::row_count; ++i) {
          sums[i][k].x += weight[i][step] * right.x;
          sums[i][k].y += weight[i][step] * right.y;
          sums[i][k].z += weight[i][step] * right.z;
          sums[i][k].w += weight[i][step] * right.w;
        }
      }
  }
}

// to[0..4) = factor * values, but only the first `count` of them are written.
template <class T>
__device__ __forceinline__ void store_four(T* to, float4 values, float factor, int count, bool aligned) {
  struct alignas(4 * sizeof(T)) {
    T element[4];
  } four{{from_float<T>(factor * values.x), from_float<T>(factor * values.y),
          from_float<T>(factor * values.z), from_float<T>(factor * values.w)}};
  if (aligned && count >= 4) {
    *reinterpret_cast<decltype(four)*>(to) = four;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < count) to[i] = four.element[i];
  }
}

// Calls body(std::integral_constant<int, D>{}), where D is head_dim rounded up to a compiled width.
template <class Body>
void with_head_dim(int head_dim, Body&& body) {
  if (head_dim <= 32) return body(std::integral_constant<int, 32>{});
  if (head_dim <= 64) return body(std::integral_constant<int, 64>{});
  if (head_dim <= 128) return body(std::integral_constant<int, 128>{});
  if (head_dim <= 256) return body(std::integral_constant<int, 256>{});
  throw std::invalid_argument("attention: d_h = " + std::to_string(head_dim) +
                              ", but this device takes at most 256");
}

}  // namespace goat::GOAT_TARGET
