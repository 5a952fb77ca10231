// The pass over keys: which part of a step a warp computes, and the sums that it keeps over all steps. The
// sums for dK and dV are fragments; those for the prior (dU and dslope) are one number a key.
#pragma once

#include "kernels/cuda/attention/attention_backward.cuh"

namespace goat::GOAT_TARGET {

// A thread's place in a step. A warp has the 16 key_tiles keys from warp_key on and the warp_queries queries
// from warp_query on, counted from the first of the tiles. The warps of half 0 have the first queries, those
// of half 1 (if there are two query_warps) the others.
template <class Shape>
struct KeyPlace {
  int half, warp_key, warp_query, lane;
  typename Tile<Shape::head_dim>::Lanes lanes;

  __device__ __forceinline__ explicit KeyPlace(int thread)
      : half(thread / 32 / Shape::key_warps),
        warp_key(thread / 32 % Shape::key_warps * 16 * Shape::key_tiles),
        warp_query(half * Shape::warp_queries),
        lane(thread % 32),
        lanes(lane) {}
  // This thread's first key and query.
  __device__ __forceinline__ int key() const { return warp_key + lane / 4; }
  __device__ __forceinline__ int query() const { return warp_query + 2 * (lane % 4); }
};

// A warp's part of S^T, P^T, dP^T or dS^T: keys in rows.
template <class Shape>
using KeyScores = Fragments<Shape::key_tiles, Shape::warp_queries / 8>;

// ------------------------------------------------------------------------------------------------ dK and dV

template <class Shape>
struct KeySums {
  Fragments<Shape::key_tiles, Shape::head_dim / 8> dk = {}, dv = {};
};

// store_partial() stores a warp's sums in shared memory; add_partial() adds them to the sums of the warp that
// has the same keys and the other half of the queries.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void store_partial(float* place, const Fragments<row_tiles, column_tiles>& sums) {
#pragma unroll
  for (int t = 0; t < row_tiles; ++t)
#pragma unroll
    for (int n = 0; n < column_tiles; ++n)
      reinterpret_cast<float4*>(place)[(t * column_tiles + n) * 32 + threadIdx.x % 32] =
          make_float4(sums[t][n][0], sums[t][n][1], sums[t][n][2], sums[t][n][3]);
}
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void add_partial(Fragments<row_tiles, column_tiles>& sums, const float* place) {
#pragma unroll
  for (int t = 0; t < row_tiles; ++t)
#pragma unroll
    for (int n = 0; n < column_tiles; ++n) {
      const float4 other =
          reinterpret_cast<const float4*>(place)[(t * column_tiles + n) * 32 + threadIdx.x % 32];
      sums[t][n][0] += other.x, sums[t][n][1] += other.y, sums[t][n][2] += other.z, sums[t][n][3] += other.w;
    }
}

// Stores dK and dV. Where two warps share keys, the warp of half 1 adds up dK and the warp of half 0 dV.
// `tiles` is the shared memory of the tiles, which no warp needs after the barrier.
template <class Shape>
__device__ __forceinline__ void store_key_gradients(KeySums<Shape>& sums, bf16* tiles, const GradientRows& dk,
                                                    const GradientRows& dv, int first_key,
                                                    KeyPlace<Shape> place) {
  constexpr int D = Shape::head_dim, warp_elements = 16 * Shape::key_tiles * D;
  const int row = first_key + place.warp_key, warp = place.warp_key / (16 * Shape::key_tiles);
  __syncthreads();  // no warp reads the last step's tiles any more
  if constexpr (Shape::query_warps == 1) {
    store_gradient<D>(sums.dk, tiles + warp * warp_elements, dk, row);
    store_gradient<D>(sums.dv, tiles + warp * warp_elements, dv, row);
  } else {
    float* const partials = reinterpret_cast<float*>(tiles);
    float* const dk_partial = partials + warp * warp_elements;
    float* const dv_partial = partials + (Shape::key_warps + warp) * warp_elements;
    if (place.half == 0)
      store_partial(dk_partial, sums.dk);
    else
      store_partial(dv_partial, sums.dv);
    __syncthreads();
    if (place.half == 0) {
      add_partial(sums.dv, dv_partial);
      store_gradient<D>(sums.dv, reinterpret_cast<bf16*>(dv_partial), dv, row);
    } else {
      add_partial(sums.dk, dk_partial);
      store_gradient<D>(sums.dk, reinterpret_cast<bf16*>(dk_partial), dk, row);
    }
  }
}

// ------------------------------------------------------------------------------------------------ the prior
// dU_j = sum_i dS_ij and dslope_j = sum_i dS_ij (j - r_i), where r_i is the middle of the queries that the
// warp has in the step of query i. A row of dS sums to 0, so sum_ij dS_ij (r_i - i') = 0. Therefore one sum
// for each key and step gives both.

// A thread has the keys 8 r + lane/4 of the warp's part. Four lanes share a key; each has a quarter of the
// queries. In the form with dQ registers are so short that a thread with four keys keeps the sums of only one
// of them: lane l has key 8 (l%4) + l/4.
template <class Shape, bool with_dq>
struct PriorSums {
  static constexpr bool one_key = with_dq && Shape::key_tiles == 2;
  static constexpr int keys = one_key ? 1 : 2 * Shape::key_tiles;
  float bias[keys] = {};  // dU, or this lane's part of it
  float slope[keys] = {};

  // Adds a step. lag: (this thread's first key) - r_i.
  __device__ __forceinline__ void add(const KeyScores<Shape>& ds, float lag) {
    float sum[2 * Shape::key_tiles];
    unrolled<2 * Shape::key_tiles>([&](int r) { sum[r] = sum_of_row(ds, r); });
    if constexpr (one_key) {
      const int lane = thread_now();
      const bool odd = lane & 1, upper = lane & 2;
      const float first = (odd ? sum[1] : sum[0]) + __shfl_xor_sync(all_lanes, odd ? sum[0] : sum[1], 1);
      const float second = (odd ? sum[3] : sum[2]) + __shfl_xor_sync(all_lanes, odd ? sum[2] : sum[3], 1);
      sum[0] = (upper ? second : first) + __shfl_xor_sync(all_lanes, upper ? first : second, 2);
      lag += static_cast<float>((lane & 3) * 8);
    }
    unrolled<keys>([&](int r) {
      bias[r] += sum[r];
      slope[r] = fmaf(lag + static_cast<float>(8 * r), sum[r], slope[r]);
    });
  }

  // Stores dkey_bias and dslope of a head; either may be nullptr. `exchange` is shared memory, two floats a
  // key, which no warp needs after the barrier.
  __device__ __forceinline__ void store(float* dkey_bias, float* dslope, float2* exchange, int first_key,
                                        int key_count, KeyPlace<Shape> place) const {
    const int lane = lane_now();
    const bool writes = one_key || lane % 4 == 0;
    const auto key_of = [&](int r) { return place.warp_key + 8 * (one_key ? lane % 4 : r) + lane / 4; };
    float2 total[keys];
    unrolled<keys>([&](int r) {
      total[r] = one_key ? make_float2(bias[r], slope[r])
                         : make_float2(sum_of_lanes(bias[r]), sum_of_lanes(slope[r]));
    });
    if constexpr (Shape::query_warps == 2) {
      __syncthreads();  // no warp reads the last step's row terms any more
      if (place.half == 1 && writes) unrolled<keys>([&](int r) { exchange[key_of(r)] = total[r]; });
      __syncthreads();
    }
    if (place.half == 0 && writes)
      unrolled<keys>([&](int r) {
        const int key = key_of(r);
        const float2 other = Shape::query_warps == 2 ? exchange[key] : make_float2(0, 0);
        if (first_key + key >= key_count) return;
        if (dkey_bias) dkey_bias[first_key + key] = total[r].x + other.x;
        if (dslope) dslope[first_key + key] = total[r].y + other.y;
      });
  }
};

}  // namespace goat::GOAT_TARGET
