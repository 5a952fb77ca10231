// Declarations that both passes of the tensor-core backward use. attention_backward.cu
// describes the algorithm.
#pragma once

#include "kernels/cuda/attention/attention_fragments.cuh"
#include "kernels/cuda/attention/attention_traits.cuh"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

// The pass over keys for head dimensions that are padded to D: computes dk, dv, dk_lanes, dkey_bias, dslope.
// If dq_sum (layout: DqSums, zeroed) is given and there is a form with dQ (has_dq_form), adds dS k to it by
// atomics.
template <int D>
void attention_backward_keys_of(const BackwardArguments<bf16>& arguments, int batch, Family family,
                                float* dq_sum, Stream stream);

// The pass over queries: computes dq and dq_lanes, and corrects delta.
void attention_backward_queries(const BackwardArguments<bf16>& arguments, int batch, Family family,
                                Stream stream);

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

// Where the rows of one head's gradient are stored. Coordinates below content_dim are stored in bf16 as
// scale * sums; in `rows` the coordinates from content_dim on are zeros. The first lane_count coordinates
// from content_dim on are stored in `lanes` in fp32 as lane_scale * sums.
struct GradientRows {
  HeadRows<bf16> rows;
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
__device__ __forceinline__ void store_gradient(const Fragments<row_tiles, D / 8>& sums, bf16* staging,
                                               const GradientRows& to, int first_row) {
  const int lane = lane_now();
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
      Vector<bf16>::load(Tile<D>::at(staging, row, chunk)).store(to.rows.row(first_row + row) + chunk * 8);
  }
}

}  // namespace goat::GOAT_TARGET
