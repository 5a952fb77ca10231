// Shared by the forward and backward pass of attention on the CPU: heads as strided rows, the causal edge of
// a tile, scratch memory, and the register-blocked product that does nearly all of the arithmetic.
//
// A tile in scratch is row-major, 64-byte aligned, and padded with zeros to whole blocks, so that no product
// has a remainder. Rows are padded to a multiple of block_rows, columns to a multiple of block_columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/simd.h"
#include "kernels/tensor.h"

namespace goat::attention {

using Index = std::int64_t;

// 6 x 16 accumulators take 12 of the 16 registers of AVX2, 6 x 32 take 12 of the 32 of AVX-512. This hides
// the latency of two FMA units, and each number that is loaded is used often enough to keep them busy.
constexpr Index block_rows = 6;
constexpr Index block_columns = 16;  // one cache line
constexpr Index query_tile = 96;     // both tiles are multiples of block_rows and block_columns
constexpr Index key_tile = 96;

constexpr Index round_up(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr Index tiles_of(Index n, Index tile) { return (n + tile - 1) / tile; }

// Rows of one head of one sequence: row t is at data + t * stride.
template <class T>
struct Rows {
  T* data;
  Index stride;
  T* operator[](Index row) const { return data + row * stride; }
};

// Head h of sequence b in a tensor [B, T, H, d_h].
template <class T = const float>
Rows<T> head_rows(const Tensor& tensor, Index b, Index h) {
  return {tensor.as<float>() + b * tensor.stride[0] + h * tensor.stride[2], tensor.stride[1]};
}

// The bias of every key of one head: f64 [T_k], or nothing. A tile of keys uses its difference to `base`, the
// bias at the position of the first query of the tile of queries, so that fp32 holds it well.
struct KeyBias {
  const double* data = nullptr;
  double base = 0;

  KeyBias() = default;
  KeyBias(const Tensor& key_bias, Index b, Index h, Index position)
      : data(key_bias ? key_bias.as<double>() + b * key_bias.stride[0] + h * key_bias.stride[1] : nullptr),
        base(data ? data[position] : 0) {}
  explicit operator bool() const { return data != nullptr; }

  float at(Index key) const { return static_cast<float>(data[key] - base); }
  // terms[0 .. key_tile) for the keys from first_key on, 0 beyond them.
  void load(float* terms, Index first_key, Index keys) const {
    for (Index key = 0; key < keys; ++key) terms[key] = at(first_key + key);
    std::fill(terms + keys, terms + key_tile, 0.0f);
  }
};

// H / H_k: the heads of q that share a head of k and v; 0 if there are heads of k and v alone.
inline Index heads_of_group(const Tensor& q, const Tensor& k) {
  return k.shape[2] > 0 ? q.shape[2] / k.shape[2] : 1;
}

// The causal mask of a tile of queries and a tile of keys. Query row r (of `queries`) is `lead + r` positions
// after the tile's first key.
struct TileEdge {
  Index queries;
  Index keys;
  Index lead;
  bool causal;

  // Number of the tile's keys, counted from the first, that query row r sees.
  SIMD_INLINE Index keys_seen(Index row) const {
    return causal ? std::clamp<Index>(lead + row + 1, 0, keys) : keys;
  }
  // The first query row that sees `key`.
  SIMD_INLINE Index first_query(Index key) const {
    return causal ? std::clamp<Index>(key - lead, 0, queries) : 0;
  }
};

// The scratch memory of the threads, `floats` each: a part of the workspace.
class Scratch {
 public:
  static std::size_t bytes(int threads, Index floats) {
    return static_cast<std::size_t>(threads * round_up(floats, block_columns)) * sizeof(float);
  }
  Scratch(void* workspace, Index floats)
      : memory_(static_cast<float*>(workspace)), floats_(round_up(floats, block_columns)) {}
  float* of_thread(int thread) const { return memory_ + thread * floats_; }

 private:
  float* memory_;
  Index floats_;
};

// tile[rows, width] = the first `width` coordinates of `rows` rows. Padded with zeros
// to [padded_rows, padded_width].
inline void load_tile(float* tile, Index padded_rows, Index padded_width, Rows<const float> from, Index rows,
                      Index width) {
  for (Index r = 0; r < rows; ++r) {
    std::memcpy(tile + r * padded_width, from[r], static_cast<std::size_t>(width) * sizeof(float));
    std::fill(tile + r * padded_width + width, tile + (r + 1) * padded_width, 0.0f);
  }
  std::fill(tile + rows * padded_width, tile + padded_rows * padded_width, 0.0f);
}

// tile[width, rows] = the transpose of the same coordinates. Padded with zeros to [width, padded_rows].
inline void load_transposed(float* tile, Index padded_rows, Rows<const float> from, Index rows, Index width) {
  for (Index r = 0; r < rows; ++r) {
    const float* row = from[r];
    for (Index c = 0; c < width; ++c) tile[c * padded_rows + r] = row[c];
  }
  for (Index c = 0; c < width; ++c)
    std::fill(tile + c * padded_rows + rows, tile + (c + 1) * padded_rows, 0.0f);
}

// A left operand. Element (row, k) is at data[row * row_stride + k * depth_stride], so that a
// transpose costs nothing.
struct LeftOperand {
  const float* data;
  Index row_stride;
  Index depth_stride;
};

// c[6, width] = (c if accumulate) + sum_{k < depth} a(r, k) b[k, 0..width). The sum is kept in registers.
template <Index width>
SIMD_INLINE void product_block(LeftOperand a, const float* b, Index b_stride, float* c, Index c_stride,
                               Index depth, bool accumulate) {
  float sum[block_rows][width] = {};
  for (Index k = 0; k < depth; ++k) {
#pragma GCC unroll 6
    for (Index r = 0; r < block_rows; ++r) {
      const float left = a.data[r * a.row_stride + k * a.depth_stride];
#pragma omp simd
      for (Index w = 0; w < width; ++w) sum[r][w] += left * b[k * b_stride + w];
    }
  }
  for (Index r = 0; r < block_rows; ++r) {
    float* row = c + r * c_stride;
    if (accumulate) {
#pragma omp simd
      for (Index w = 0; w < width; ++w) row[w] += sum[r][w];
    } else {
#pragma omp simd
      for (Index w = 0; w < width; ++w) row[w] = sum[r][w];
    }
  }
}

// c[6, columns] = (c if accumulate) + a b for six rows of a. columns is a multiple of 16; b and c have the
// same row stride `stride`. Either width adds the same terms in the same order.
SIMD_INLINE void product_rows(LeftOperand a, const float* b, float* c, Index stride, Index columns,
                              Index depth, bool accumulate) {
  Index w = 0;
  if (simd::has_avx512)
    for (; w + 2 * block_columns <= columns; w += 2 * block_columns)
      product_block<2 * block_columns>(a, b + w, stride, c + w, stride, depth, accumulate);
  for (; w < columns; w += block_columns)
    product_block<block_columns>(a, b + w, stride, c + w, stride, depth, accumulate);
}

}  // namespace goat::attention
