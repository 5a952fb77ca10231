// The accumulators of a warp, products with them on tensor cores, and the terms with which they begin.
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/reduce.cuh"

namespace goat::GOAT_TARGET {

// A warp's matrix of 16 row_tiles rows by 8 column_tiles columns, in fragments of mma.m16n8k16. Value i of
// fragment (t, n) is in row 16 t + 8 (i/2) and column 8 n + i%2, counted from the thread's first row (lane/4)
// and first column (2 (lane%4)). So a thread has the rows 8 r for r < 2 row_tiles, and four lanes share a
// row.
template <int row_tiles, int column_tiles>
using Fragments = float[row_tiles][column_tiles][4];

// The thread's value in its row 8 r and a column.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ float value_of(const Fragments<row_tiles, column_tiles>& s, int r, int column) {
  return s[r / 2][column / 8][2 * (r % 2) + column % 8];
}

// body(value, column) for each value of the thread's row 8 r.
template <int row_tiles, int column_tiles, class Body>
__device__ __forceinline__ void for_each_in_row(Fragments<row_tiles, column_tiles>& s, int r, Body&& body) {
#pragma unroll
  for (int n = 0; n < column_tiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) body(s[r / 2][n][2 * (r % 2) + i], 8 * n + i);
}

// body(value, terms[column]) for each value.
template <int row_tiles, int column_tiles, class Body>
__device__ __forceinline__ void for_each_with_column_term(Fragments<row_tiles, column_tiles>& s,
                                                          const float* terms, Body&& body) {
#pragma unroll
  for (int n = 0; n < column_tiles; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(terms + 8 * n);
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) body(s[t][n][i], i % 2 ? pair.y : pair.x);
  }
}

// s *= factors, value by value.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void multiply_each(Fragments<row_tiles, column_tiles>& s,
                                              const Fragments<row_tiles, column_tiles>& factors) {
#pragma unroll
  for (int t = 0; t < row_tiles; ++t)
#pragma unroll
    for (int n = 0; n < column_tiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[t][n][i] *= factors[t][n][i];
}

// The sum of the thread's values in its row 8 r.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ float sum_of_row(const Fragments<row_tiles, column_tiles>& s, int r) {
  const int first = 2 * (r % 2);
  float sum = s[r / 2][0][first] + s[r / 2][0][first + 1];
#pragma unroll
  for (int n = 1; n < column_tiles; ++n) sum += s[r / 2][n][first], sum += s[r / 2][n][first + 1];
  return sum;
}

// The largest of the thread's values in its row 8 r.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ float maximum_of_row(const Fragments<row_tiles, column_tiles>& s, int r) {
  const int first = 2 * (r % 2);
  float largest = fmaxf(s[r / 2][0][first], s[r / 2][0][first + 1]);
#pragma unroll
  for (int n = 1; n < column_tiles; ++n)
    largest = fmaxf(largest, fmaxf(s[r / 2][n][first], s[r / 2][n][first + 1]));
  return largest;
}

// The sum (maximum) over the four lanes that share a row. Each of them receives it.
__device__ __forceinline__ float sum_of_lanes(float value) {
  value += __shfl_xor_sync(all_lanes, value, 1);
  return value + __shfl_xor_sync(all_lanes, value, 2);
}
__device__ __forceinline__ float maximum_of_lanes(float value) {
  value = fmaxf(value, __shfl_xor_sync(all_lanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(all_lanes, value, 2));
}

// ------------------------------------------------------------------------------------------------- products

// sums += A B^T over all D coordinates. A: the rows of a_tile from a_row on; B: the rows of b_tile from b_row
// on. Each fragment has 16 rows of A by 8 rows of B.
template <int D, int row_tiles, int column_tiles>
__device__ __forceinline__ void add_product_of_rows(Fragments<row_tiles, column_tiles>& sums, bf16* a_tile,
                                                    int a_row, bf16* b_tile, int b_row,
                                                    typename Tile<D>::Lanes lanes) {
#pragma unroll
  for (int d = 0; d < Tile<D>::chunks; d += 2) {
    std::uint32_t a[row_tiles][4];
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) Tile<D>::a_fragment(a[t], a_tile, a_row + 16 * t, d, lanes);
#pragma unroll
    for (int n = 0; n < column_tiles; n += 2) {
      std::uint32_t b[4];
      Tile<D>::b_fragments(b, b_tile, b_row + 8 * n, d, lanes);
#pragma unroll
      for (int t = 0; t < row_tiles; ++t) {
        mma_bf16(sums[t][n], a[t], b[0], b[1]);
        mma_bf16(sums[t][n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// sums += A B. A: fragments in registers, rounded to bf16. B: the rows of `tile` from `row` on, one row for
// each column of A.
template <int D, int row_tiles, int column_tiles>
__device__ __forceinline__ void add_product(Fragments<row_tiles, D / 8>& sums,
                                            const Fragments<row_tiles, column_tiles>& a_sums, bf16* tile,
                                            int row, typename Tile<D>::Lanes lanes) {
#pragma unroll
  for (int k = 0; k < column_tiles; k += 2) {
    std::uint32_t a[row_tiles][4];
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float* pair = &a_sums[t][k + part / 2][2 * (part % 2)];
        a[t][part] = pack_bf16(pair[0], pair[1]);
      }
#pragma unroll
    for (int d = 0; d < Tile<D>::chunks; d += 2) {
      std::uint32_t b[4];
      Tile<D>::b_fragments_transposed(b, tile, row + 8 * k, d, lanes);
#pragma unroll
      for (int t = 0; t < row_tiles; ++t) {
        mma_bf16(sums[t][d], a[t], b[0], b[1]);
        mma_bf16(sums[t][d + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// ------------------------------------------------------------------------------ the slope and the key bias
// The accumulators of key j begin at its term: slope (j - j0), where j0 is the tile's first key, or with a
// key bias KeyTerms::at(j); in both cases divided by scale. A table in shared memory (8 bytes a key) holds
// these numbers. A thread gets the numbers for the four values of a fragment by one 16-byte read.

// The terms of a head's positions relative to the position `origin`, which lies in the block's own tile. The
// bias may be as large as its sum over all positions, so the difference is formed in double and rounded once.
// Only what lies far from the block's rows is large and rounded coarsely; its weights are zero.
struct KeyTerms {
  double base, slope;  // base: the bias at the origin
  int origin;

  // `bias`: of this position.
  __device__ __forceinline__ float at(int position, double bias) const {
    return static_cast<float>(fma(slope, static_cast<double>(position - origin), bias - base));
  }
};
template <class Arguments>
__device__ __forceinline__ KeyTerms key_terms(const Arguments& arguments, int sequence, int head,
                                              int origin) {
  return {arguments.key_bias.at(sequence, head, origin), arguments.slope ? arguments.slope[head] : 0.0f,
          origin};
}

// Calls body(std::integral_constant<Terms, kind>{}) with the kind of an operation's terms.
template <class Arguments, class Body>
void with_terms(const Arguments& arguments, Body&& body) {
  if (arguments.key_bias) return body(std::integral_constant<Terms, Terms::key_bias>{});
  if (arguments.slope) return body(std::integral_constant<Terms, Terms::slope>{});
  body(std::integral_constant<Terms, Terms::none>{});
}

// Keys in columns: the table has a float4 for each fragment of 8 columns and each of the four
// lanes that share a row.
template <int keys>
__device__ __forceinline__ void store_column_terms(float4* table, float term) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= keys / 2) return;
  const float first = term * static_cast<float>(2 * thread),
              second = term * static_cast<float>(2 * thread + 1);
  table[thread] = make_float4(first, second, first, second);
}

// Of a key bias, in two steps: thread t has column t of the tile.
template <int keys>
__device__ __forceinline__ double fetch_key_bias(const double* bias, int first_key, int key_count) {
  const int thread = thread_now();
  return thread < keys ? bias[min(first_key + thread, key_count - 1)] : 0.0;  // absent keys are masked
}
template <int keys>
__device__ __forceinline__ void store_column_term(float4* table, const KeyTerms& terms, int first_key,
                                                  double bias, float inverse_scale) {
  const int thread = thread_now();
  if (thread >= keys) return;
  float* const place = reinterpret_cast<float*>(table + thread / 2) + thread % 2;
  place[0] = place[2] = terms.at(first_key + thread, bias) * inverse_scale;
}
template <int row_tiles, int fragments>
__device__ __forceinline__ void begin_at_column_terms(Fragments<row_tiles, fragments>& sums,
                                                      const float4* table) {
  table += opaque(static_cast<int>(threadIdx.x)) % 4;
#pragma unroll
  for (int n = 0; n < fragments; ++n) {
    const float4 term = table[4 * n];
#pragma unroll
    for (int t = 0; t < row_tiles; ++t)
      sums[t][n][0] = term.x, sums[t][n][1] = term.y, sums[t][n][2] = term.z, sums[t][n][3] = term.w;
  }
}

// Keys in rows: the table has a float4 for the rows r and r + 8 of each 16. term(row) is the term of a row.
template <int keys, class Term>
__device__ __forceinline__ void store_row_terms(float4* table, Term&& term) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / 8 * 16 + thread % 8;
  if (thread >= keys / 2) return;
  const float upper = term(row), lower = term(row + 8);
  table[thread] = make_float4(upper, upper, lower, lower);
}
// `row`: the row of this thread's first accumulator.
template <int row_tiles, int fragments>
__device__ __forceinline__ void begin_at_row_terms(Fragments<row_tiles, fragments>& sums, const float4* table,
                                                   int row) {
  table += row / 16 * 8 + row % 8;
#pragma unroll
  for (int t = 0; t < row_tiles; ++t) {
    const float4 term = table[8 * t];
#pragma unroll
    for (int n = 0; n < fragments; ++n)
      sums[t][n][0] = term.x, sums[t][n][1] = term.y, sums[t][n][2] = term.z, sums[t][n][3] = term.w;
  }
}

}  // namespace goat::GOAT_TARGET
