// Declarations that both passes of the tensor-core backward use. attention_backward.cu
// describes the algorithm.
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/attention/attention_traits.cuh"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

// The pass over keys: computes dk, dv, dk_lanes, dkey_bias, dslope. If dq_sum (layout: DqSums, zeroed) is
// given, adds S k to it by atomics.
void attention_backward_keys(const BackwardArguments<bf16>& arguments, int batch, Family family,
                             float* dq_sum, Stream stream);

// Whether attention_backward_keys can take dq_sum.
bool can_add_dq(int head_dim, Family family);

// The pass over queries: computes dq and dq_lanes, and corrects delta.
void attention_backward_queries(const BackwardArguments<bf16>& arguments, int batch, Family family,
                                Stream stream);

// The fp32 workspace in which dq is added up: B H heads, each with ceil(T_q / queries) tiles. A tile has the
// layout of the accumulators of eight warps. A warp has 16 queries by D / 2 coordinates, which are D / 16
// fragments of 16 x 8. WarpReduction::place(lane, i) is the index of a value in its fragment. That value
// belongs to row lane/4 + 8 (i/2) and coordinate 2 (lane%4) + i%2 of the fragment. So one reduction of a warp
// writes 512 bytes without gaps.
template <int D>
struct DqSums {
  static constexpr int queries = 64, warps = 8, fragments = D / 16, fragment_elements = 128,
                       tile_elements = queries * D;
  static_assert(warps * fragments * fragment_elements == tile_elements);
  static __host__ __device__ int tiles(int query_count) { return (query_count + queries - 1) / queries; }

  // The number of floats of the workspace for `batch` sequences.
  static std::int64_t elements(int batch, const BackwardArguments<bf16>& arguments) {
    return static_cast<std::int64_t>(batch) * arguments.heads * tiles(arguments.queries) * tile_elements;
  }

  // A warp takes the queries from query() on and the coordinates from 8 chunk() on.
  static __device__ __forceinline__ int query(int warp) { return warp % 4 * 16; }
  static __device__ __forceinline__ int chunk(int warp) { return warp / 4 * fragments; }
};

// The tile width D that a head dimension <= 128 is padded to.
inline int padded_head_dim(int head_dim) { return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : 128; }

// Calls body(std::integral_constant<int, D>{}, std::integral_constant<Family, family>{}).
template <class Body>
void with_tile_shape(int head_dim, Family family, Body&& body) {
  const auto with_width = [&]<Family chosen>(std::integral_constant<Family, chosen> constant) {
    if (padded_head_dim(head_dim) == 32)
      body(std::integral_constant<int, 32>{}, constant);
    else if (padded_head_dim(head_dim) == 64)
      body(std::integral_constant<int, 64>{}, constant);
    else
      body(std::integral_constant<int, 128>{}, constant);
  };
  if (family == Family::large_shared)
    with_width(std::integral_constant<Family, Family::large_shared>{});
  else
    with_width(std::integral_constant<Family, Family::small_shared>{});
}

// sums += A B^T over all D coordinates. A: the rows of a_tile from a_row on; B: the rows of b_tile from b_row
// on. Each accumulator fragment has 16 rows of A by 8 rows of B.
template <int D, int row_tiles, int column_tiles>
__device__ __forceinline__ void multiply_rows(float (&sums)[row_tiles][column_tiles][4], bf16* a_tile,
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

// sums += A B. A: accumulators of multiply_rows in registers, rounded to bf16. B: the rows of `tile` from
// `row` on, one row for each column of A.
template <int D, int row_tiles, int column_tiles>
__device__ __forceinline__ void multiply_packed(float (&sums)[row_tiles][D / 8][4],
                                                const float (&a_sums)[row_tiles][column_tiles][4], bf16* tile,
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

// Where the rows of one head's gradient are stored. Coordinates below content_dim are stored in bf16 as
// scale * sums; in `rows` the coordinates from content_dim on are zeros. The first lane_count coordinates
// from content_dim on are stored in `lanes` in fp32 as lane_scale * sums.
struct GradientRows {
  bf16* rows;
  std::int64_t row_stride;
  int count, head_dim, content_dim;
  float scale;
  float* lanes = nullptr;  // [count, lane_count] or nullptr
  int lane_count = 0;
  float lane_scale = 0;
};

// Stores a warp's accumulators to the rows of the gradient from first_row on. `staging` is shared memory for
// 16 * row_tiles rows of D that no other warp uses. From there the rows are stored in 16-byte chunks; D / 8
// consecutive lanes write a row.
template <int D, int row_tiles>
__device__ __forceinline__ void store_gradient(const float (&sums)[row_tiles][D / 8][4], bf16* staging,
                                               const GradientRows& to, int first_row) {
  const int lane = opaque(static_cast<int>(threadIdx.x) % 32);
  __syncwarp();  // other lanes may still read `staging`
#pragma unroll
  for (int t = 0; t < row_tiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * t + 8 * half + lane / 4;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const int column = 8 * n + 2 * (lane % 4);
        const float* pair = &sums[t][n][2 * half];
        *reinterpret_cast<std::uint32_t*>(Tile<D>::at(staging, row, n) + column % 8) =
            pack_bf16(column < to.content_dim ? to.scale * pair[0] : 0.0f,
                      column + 1 < to.content_dim ? to.scale * pair[1] : 0.0f);
        if (to.lanes && first_row + row < to.count)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (const int r = column + i - to.content_dim; r >= 0 && r < to.lane_count)
              to.lanes[static_cast<std::int64_t>(first_row + row) * to.lane_count + r] =
                  to.lane_scale * pair[i];
      }
    }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * row_tiles * Tile<D>::chunks; i += 32) {
    const int row = i / Tile<D>::chunks, chunk = i % Tile<D>::chunks;
    if (first_row + row < to.count && chunk * 8 < to.head_dim)
      Vector<bf16>::load(Tile<D>::at(staging, row, chunk))
          .store(to.rows + (first_row + row) * to.row_stride + chunk * 8);
  }
}

}  // namespace goat::GOAT_TARGET
