// dQ by shares, for the form of the backward pass that forms dS only once: each block of keys adds its share
// dS K of a step's queries to an fp32 workspace by atomics, and a last kernel makes dQ of the sums.
#pragma once

#include "kernels/cuda/attention/attention_backward.cuh"

namespace goat::GOAT_TARGET {

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

// ------------------------------------------------------------------------------- a block of keys adds its
// share dQ = dS K for a step's queries. The warps that formed dS hold it by keys; dQ sums over all keys of
// the block. So dS^T goes through shared memory, and each warp takes 16 queries and half of the coordinates.
template <int D>
using DqShare = float[DqSums<D>::fragments][4];

// Stores a warp's part of dS^T in shared memory, rounded to bf16 as for dK. Its first key and query are
// counted from the first of the tile.
template <int queries, int row_tiles, int column_tiles>
__device__ __forceinline__ void store_ds(bf16* ds_tile, const Fragments<row_tiles, column_tiles>& ds,
                                         int warp_key, int warp_query, int lane) {
#pragma unroll
  for (int t = 0; t < row_tiles; ++t)
#pragma unroll
    for (int n = 0; n < column_tiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bf16* chunk = Tile<queries>::at(ds_tile, warp_key + 16 * t + 8 * half + lane / 4, warp_query / 8 + n);
        *reinterpret_cast<std::uint32_t*>(chunk + 2 * (lane % 4)) =
            pack_bf16(ds[t][n][2 * half], ds[t][n][2 * half + 1]);
      }
}

// share += dS K.
template <class Shape>
__device__ __forceinline__ void add_ds_k(DqShare<Shape::head_dim>& share, bf16* ds_tile, bf16* k_tile) {
  constexpr int D = Shape::head_dim;
  using DsTile = Tile<Shape::queries>;
  using Sums = DqSums<D>;
  static_assert(Shape::warps == Sums::warps && Shape::queries == Sums::queries);
  const int thread = thread_now(), lane = thread % 32, warp = thread / 32;
  const typename DsTile::Lanes ds_lanes(lane);
  const typename Tile<D>::Lanes k_lanes(lane);
#pragma unroll
  for (int key = 0; key < Shape::keys; key += 16) {
    std::uint32_t a[4];
    DsTile::a_fragment_transposed(a, ds_tile, key, Sums::query(warp) / 8, ds_lanes);
#pragma unroll
    for (int d = 0; d < Sums::fragments; d += 2) {
      std::uint32_t b[4];
      Tile<D>::b_fragments_transposed(b, k_tile, key, Sums::chunk(warp) + d, k_lanes);
      mma_bf16(share[d], a, b[0], b[1]);
      mma_bf16(share[d + 1], a, b[2], b[3]);
    }
  }
}

// Adds a share to the workspace. `tile` is an index over the tiles of all heads.
template <int D>
__device__ __forceinline__ void add_to_workspace(float* dq_sum, int tile, const DqShare<D>& share) {
  const int thread = thread_now(), lane = thread % 32, warp = thread / 32;
  float* const to = dq_sum + static_cast<std::int64_t>(tile) * DqSums<D>::tile_elements +
                    warp * (DqSums<D>::tile_elements / DqSums<D>::warps);
#pragma unroll
  for (int d = 0; d < DqSums<D>::fragments; ++d)
    WarpReduction::add(to + d * DqSums<D>::fragment_elements, share[d], lane);
}

}  // namespace goat::GOAT_TARGET
