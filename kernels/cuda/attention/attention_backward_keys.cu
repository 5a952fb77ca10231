// Attention, backward, the pass over keys on tensor cores: dV = P^T dO, dK = scale S^T Q. For the prior
// it computes dU_j = sum_i S_ij and dslope_j = sum_i S_ij (j - r_i), from S in fp32 before S is rounded
// to bf16 for the product. r_i is the middle of the queries that the warp takes in the step of query i. A
// row of S sums to 0, so sum_ij S_ij (r_i - i') = 0. Therefore one sum for each key and step gives both
// dU_j and dslope_j.
//
// A block owns a tile of keys of one head. It walks over tiles of queries from the last one back to the
// diagonal, so the tiles that need a mask come last. It forms S^T = K Q^T and dP^T = V dO^T with keys
// in rows. The accumulators are then the A operands of P^T dO and S^T Q without any exchange. K and V
// stay in shared memory. Q, dO, lse and delta of the next tile are fetched while the block computes
// this one. Where two warps share keys, each takes half of the queries. Their sums are added at the
// end, always in the same order.
//
// Logits are relative to the block's first key:
//   p = 2^(scale log2(e) (<q,k> + (slope / scale) (j - key0)) - row_term_i),
//   row_term_i = lse_i log2(e) + slope2 (i' - key0),  slope2 = slope log2(e).
// For a distant query the slope's term and the log-sum-exp are large; they cancel in row_term_i. The
// accumulators of K Q^T begin at the slope's term, which is the same in every step.
//
// Memory traffic of a block: K and V once, Q and dO once for each block of keys that sees them, dK and dV
// once. FLOPs: 8 D a (query, key) pair, or 10 D with dQ. A warp's step of `queries` queries, with
// q = warp_queries, t = key_tiles:
//   mma           2 t (q/8) (D/16)  +  2 t (q/16) (D/8)             S^T and dP^T, dV and dK
//   ldmatrix.x4   2 (t + q/16) (D/16)  +  2 (q/16) (D/16)
//   with dQ       8 warps take 16 queries x D/2 coordinates each and walk over (keys/16) steps of keys:
//                 (keys/16) (D/16) mma and (keys/16) (1 + D/32) ldmatrix.x4 more,
//                 and D/16 16-byte reductions a thread (4 D queries bytes a block)
//   copies        4 queries D bytes a block; 16-byte cp.async: queries D / (4 threads) a thread
// The products of dQ come one step later. S has two tiles in shared memory, so the one barrier of a step is
// enough to make S visible.
//
// The kernel contains the step twice (with and without a mask), the copies of K and V (keys
// D / (4 threads)) and the copies of the first Q and dO. It contains the products of dQ three times: in
// both steps (for the previous step) and after the last step. test/test_cuda_sass.py counts these
// instructions in the machine code.
//   D = 32: HMMA 128, LDSM 48, LDGSTS 10
//   D = 32, with dQ: HMMA 176, LDSM 96, LDGSTS 10
//   D = 64: HMMA 256, LDSM 96, LDGSTS 20
//   D = 64, with dQ: HMMA 352, LDSM 168, LDGSTS 20
//   D = 128, large_shared: HMMA 512, LDSM 288, LDGSTS 40
//   D = 128, large_shared, with dQ: HMMA 704, LDSM 408, LDGSTS 40
//   D = 128, small_shared: HMMA 256, LDSM 160, LDGSTS 32
#include <algorithm>

#include "kernels/cuda/attention/attention_backward.cuh"
#include "kernels/cuda/reduce.cuh"

namespace goat::GOAT_TARGET {

namespace {

// The sums for a thread's keys: key 16 t + 8 half + lane/4 of the warp. Four lanes share a key; each lane has
// a quarter of the queries.
template <class Shape, bool with_dq>
struct KeySums {
  // The form with dQ has no registers left. Where a thread has four keys, each of the four lanes keeps the
  // prior's sums of one key: row 8 (lane%4) + lane/4.
  static constexpr bool one_key = with_dq && Shape::key_tiles == 2;
  static constexpr int prior_keys = one_key ? 1 : 2 * Shape::key_tiles;
  float dk[Shape::key_tiles][Shape::head_dim / 8][4] = {};
  float dv[Shape::key_tiles][Shape::head_dim / 8][4] = {};
  float bias[prior_keys] = {};  // dU, or this lane's part of it
  float slope[prior_keys] = {};
};

// A warp's part of S^T or dP^T.
template <class Shape>
using Scores = float[Shape::key_tiles][Shape::warp_queries / 8][4];

// The rows that a warp owns, counted from the first row of the tiles.
template <class Shape>
struct Place {
  int half, warp_key, warp_query;

  __device__ __forceinline__ explicit Place(int thread)
      : half(thread / 32 / Shape::key_warps),
        warp_key(thread / 32 % Shape::key_warps * 16 * Shape::key_tiles),
        warp_query(half * Shape::warp_queries) {}
};

// s becomes p. negative_row_terms: -row_term, beginning at this thread's first query.
template <class Shape>
__device__ __forceinline__ void exponentiate(Scores<Shape>& s, const float* negative_row_terms,
                                             float scale2) {
#pragma unroll
  for (int n = 0; n < Shape::warp_queries / 8; ++n) {
    const float2 row_terms = *reinterpret_cast<const float2*>(negative_row_terms + 8 * n);
#pragma unroll
    for (int t = 0; t < Shape::key_tiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[t][n][i] = exp2_approximate(fmaf(s[t][n][i], scale2, i % 2 ? row_terms.y : row_terms.x));
  }
}

// p = 0 where the key is absent or hidden from the query. first_lag: (this thread's first key) - (position of
// this thread's first query). keys_left: the number of keys from this thread's first key on.
template <class Shape>
__device__ __forceinline__ void mask(Scores<Shape>& p, int first_lag, int keys_left, bool causal) {
#pragma unroll
  for (int t = 0; t < Shape::key_tiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * t + 8 * half, first_column = row >= keys_left ? Shape::queries
                                                        : causal         ? first_lag + row
                                                                         : 0;
#pragma unroll
      for (int n = 0; n < Shape::warp_queries / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i < first_column) p[t][n][2 * half + i] = 0;
    }
}

// The accumulators of dP^T begin at -delta. negative_deltas begins at this thread's first query.
template <class Shape>
__device__ __forceinline__ void begin_at(Scores<Shape>& dp, const float* negative_deltas) {
#pragma unroll
  for (int n = 0; n < Shape::warp_queries / 8; ++n) {
    const float2 deltas = *reinterpret_cast<const float2*>(negative_deltas + 8 * n);
#pragma unroll
    for (int t = 0; t < Shape::key_tiles; ++t) {
      dp[t][n][0] = dp[t][n][2] = deltas.x;
      dp[t][n][1] = dp[t][n][3] = deltas.y;
    }
  }
}

// Adds a step's S to the sums of dU and dslope. lag: (this thread's first key) - (position of the middle of
// the warp's queries in this step).
template <class Shape, bool with_dq>
__device__ __forceinline__ void add_prior(KeySums<Shape, with_dq>& sums, const Scores<Shape>& ds, float lag) {
  float sum[2 * Shape::key_tiles];
#pragma unroll
  for (int row = 0; row < 2 * Shape::key_tiles; ++row) {
    const auto& part = ds[row / 2];
    const int half = 2 * (row % 2);
    sum[row] = part[0][half] + part[0][half + 1];
#pragma unroll
    for (int n = 1; n < Shape::warp_queries / 8; ++n)
      sum[row] += part[n][half], sum[row] += part[n][half + 1];
  }
  if constexpr (KeySums<Shape, with_dq>::one_key) {
    const int lane = opaque(static_cast<int>(threadIdx.x));
    const bool odd = lane & 1, upper = lane & 2;
    const float first = (odd ? sum[1] : sum[0]) + __shfl_xor_sync(all_lanes, odd ? sum[0] : sum[1], 1);
    const float second = (odd ? sum[3] : sum[2]) + __shfl_xor_sync(all_lanes, odd ? sum[2] : sum[3], 1);
    sum[0] = (upper ? second : first) + __shfl_xor_sync(all_lanes, upper ? first : second, 2);
    lag += static_cast<float>((lane & 3) * 8);
  }
#pragma unroll
  for (int row = 0; row < KeySums<Shape, with_dq>::prior_keys; ++row) {
    sums.bias[row] += sum[row];
    sums.slope[row] = fmaf(lag + static_cast<float>(8 * row), sum[row], sums.slope[row]);
  }
}

// Stores S^T in shared memory, rounded to bf16 as for dK.
template <class Shape>
__device__ __forceinline__ void put_ds(const Scores<Shape>& ds, bf16* ds_tile, int warp_key, int warp_query,
                                       int lane) {
  using T = Tile<Shape::queries>;
#pragma unroll
  for (int t = 0; t < Shape::key_tiles; ++t)
#pragma unroll
    for (int n = 0; n < Shape::warp_queries / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<std::uint32_t*>(
            T::at(ds_tile, warp_key + 16 * t + 8 * half + lane / 4, warp_query / 8 + n) + 2 * (lane % 4)) =
            pack_bf16(ds[t][n][2 * half], ds[t][n][2 * half + 1]);
}

// S K of a step's queries: each warp takes 16 queries and half of the coordinates.
template <int D>
using QuerySums = float[DqSums<D>::fragments][4];

template <class Shape>
__device__ __forceinline__ void multiply_ds(QuerySums<Shape::head_dim>& dq, bf16* ds_tile, bf16* k_tile) {
  constexpr int D = Shape::head_dim;
  using T = Tile<Shape::queries>;
  using Sums = DqSums<D>;
  static_assert(Shape::warps == Sums::warps && Shape::queries == Sums::queries);
  const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % 32, warp = thread / 32;
  const typename T::Lanes ds_lanes(lane);
  const typename Tile<D>::Lanes k_lanes(lane);
#pragma unroll
  for (int key = 0; key < Shape::keys; key += 16) {
    std::uint32_t a[4];
    T::a_fragment_transposed(a, ds_tile, key, Sums::query(warp) / 8, ds_lanes);
#pragma unroll
    for (int d = 0; d < Sums::fragments; d += 2) {
      std::uint32_t b[4];
      Tile<D>::b_fragments_transposed(b, k_tile, key, Sums::chunk(warp) + d, k_lanes);
      mma_bf16(dq[d], a, b[0], b[1]);
      mma_bf16(dq[d + 1], a, b[2], b[3]);
    }
  }
}

// Adds S K of a step's queries to the workspace. `tile` is an index over the tiles of all heads.
template <int D>
__device__ __forceinline__ void add_to_workspace(const QuerySums<D>& dq, float* dq_sum, int tile) {
  const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % 32, warp = thread / 32;
  float* const to = dq_sum + static_cast<std::int64_t>(tile) * DqSums<D>::tile_elements +
                    warp * (DqSums<D>::tile_elements / DqSums<D>::warps);
#pragma unroll
  for (int d = 0; d < DqSums<D>::fragments; ++d)
    WarpReduction::add(to + d * DqSums<D>::fragment_elements, dq[d], lane);
}

// put() stores a warp's accumulators in shared memory, and add() adds them to the partner's accumulators.
template <int tiles, int width>
__device__ __forceinline__ void put(const float (&sums)[tiles][width][4], float4* place) {
#pragma unroll
  for (int t = 0; t < tiles; ++t)
#pragma unroll
    for (int n = 0; n < width; ++n)
      place[(t * width + n) * 32 + threadIdx.x % 32] =
          make_float4(sums[t][n][0], sums[t][n][1], sums[t][n][2], sums[t][n][3]);
}
template <int tiles, int width>
__device__ __forceinline__ void add(float (&sums)[tiles][width][4], const float4* place) {
#pragma unroll
  for (int t = 0; t < tiles; ++t)
#pragma unroll
    for (int n = 0; n < width; ++n) {
      const float4 other = place[(t * width + n) * 32 + threadIdx.x % 32];
      sums[t][n][0] += other.x, sums[t][n][1] += other.y, sums[t][n][2] += other.z, sums[t][n][3] += other.w;
    }
}

// Stores dK and dV. Where two warps share keys, it adds their sums first: the warp of the second half of the
// queries adds up dK, the warp of the first half dV. `tiles` is free shared memory.
template <class Shape, bool with_dq>
__device__ __forceinline__ void finish_gradients(KeySums<Shape, with_dq>& sums, bf16* tiles,
                                                 const GradientRows& dk, const GradientRows& dv,
                                                 int first_key, Place<Shape> place) {
  constexpr int D = Shape::head_dim, warp_elements = 16 * Shape::key_tiles * D;
  const int row = first_key + place.warp_key, warp = place.warp_key / (16 * Shape::key_tiles);
  __syncthreads();  // no warp reads the last step's tiles any more
  if constexpr (Shape::query_warps == 1) {
    store_gradient<D>(sums.dk, tiles + warp * warp_elements, dk, row);
    store_gradient<D>(sums.dv, tiles + warp * warp_elements, dv, row);
  } else {
    float* const parts = reinterpret_cast<float*>(tiles);
    float* const dk_part = parts + warp * warp_elements;
    float* const dv_part = parts + (Shape::key_warps + warp) * warp_elements;
    if (place.half == 0)
      put(sums.dk, reinterpret_cast<float4*>(dk_part));
    else
      put(sums.dv, reinterpret_cast<float4*>(dv_part));
    __syncthreads();
    if (place.half == 0) {
      add(sums.dv, reinterpret_cast<const float4*>(dv_part));
      store_gradient<D>(sums.dv, reinterpret_cast<bf16*>(dv_part), dv, row);
    } else {
      add(sums.dk, reinterpret_cast<const float4*>(dk_part));
      store_gradient<D>(sums.dk, reinterpret_cast<bf16*>(dk_part), dk, row);
    }
  }
}

// Stores dkey_bias and dslope of a head; either may be nullptr. `exchange` is free shared
// memory, two floats a key.
template <class Shape, bool with_dq>
__device__ __forceinline__ void finish_prior(KeySums<Shape, with_dq>& sums, float2* exchange,
                                             float* dkey_bias, float* dslope, int keys, int first_key,
                                             Place<Shape> place) {
  constexpr bool one_key = KeySums<Shape, with_dq>::one_key;
  constexpr int prior_keys = KeySums<Shape, with_dq>::prior_keys;
  const int lane = opaque(static_cast<int>(threadIdx.x) % 32);
  const bool writes = one_key || lane % 4 == 0;
  const auto row_of = [&](int i) { return place.warp_key + 8 * (one_key ? lane % 4 : i) + lane / 4; };
  float2 result[prior_keys];
#pragma unroll
  for (int i = 0; i < prior_keys; ++i) {
    result[i] = make_float2(sums.bias[i], sums.slope[i]);
    if constexpr (!one_key)
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        result[i].x += __shfl_xor_sync(all_lanes, result[i].x, offset);
        result[i].y += __shfl_xor_sync(all_lanes, result[i].y, offset);
      }
  }
  if constexpr (Shape::query_warps == 2) {
    __syncthreads();  // no warp reads the last step's row terms any more
    if (place.half == 1 && writes)
#pragma unroll
      for (int i = 0; i < prior_keys; ++i) exchange[row_of(i)] = result[i];
    __syncthreads();
  }
  if (place.half == 0 && writes)
#pragma unroll
    for (int i = 0; i < prior_keys; ++i) {
      const int row = row_of(i);
      const float2 other = Shape::query_warps == 2 ? exchange[row] : make_float2(0, 0);
      if (first_key + row >= keys) continue;
      if (dkey_bias) dkey_bias[first_key + row] = result[i].x + other.x;
      if (dslope) dslope[first_key + row] = result[i].y + other.y;
    }
}

// grid (tiles of keys, H, B). The first tile comes first, because most queries see it. The tiles of a head
// run at the same time and share its Q and dO in L2. `prior`: there is a slope, or the gradient of the slope
// or of the key bias is wanted.
template <int D, Family family, bool prior, bool deterministic>
__global__ void __launch_bounds__(BackwardKeysTraits<D, family>::threads, 1)
    attention_backward_keys_kernel(const BackwardArguments<bf16> arguments, float scale2, float* dq_sum) {
  if constexpr (compiled_for<family>) {
    using Shape = BackwardKeysTraits<D, family>;
    constexpr int keys = Shape::keys, queries = Shape::queries;
    state_dynamic_shared<Shape::shared_bytes + (deterministic ? 0 : 2 * Shape::ds_bytes)>();
    bf16* const k_tile = dynamic_shared<bf16>();
    bf16* const v_tile = k_tile + keys * D;
    bf16* const query_tiles = v_tile + keys * D;  // 2 x (Q, dO)
    // 2 x (-row_term, -delta)
    float* const query_terms = reinterpret_cast<float*>(k_tile + Shape::tile_elements);
    float4* const slope_terms = reinterpret_cast<float4*>(query_terms + 4 * queries);
    bf16* const ds_tiles = reinterpret_cast<bf16*>(slope_terms + keys / 2);  // 2 tiles

    const Place<Shape> place(static_cast<int>(threadIdx.x));
    const int first_key = static_cast<int>(blockIdx.x) * keys, warp_key = place.warp_key,
              warp_query = place.warp_query;
    const int offset = arguments.keys - arguments.queries;  // i' - i
    const auto slope_now = [&] {
      return prior && arguments.slope ? arguments.slope[block_index_now(1)] : 0.0f;
    };

    // Steps [full, steps) need no mask. No query of a step below `first` sees these keys.
    const int steps = (arguments.queries + queries - 1) / queries;
    const int first = arguments.causal ? max(first_key - offset, 0) / queries : 0;
    const int full = first_key + keys > arguments.keys ? steps
                     : arguments.causal ? (max(first_key + keys - 1 - offset, 0) + queries - 1) / queries
                                        : 0;

    // block_index_now() and opaque() make the compiler compute addresses again in every step, because
    // registers are short.
    const auto load = [&]<bool checked>(int step, std::bool_constant<checked>) {
      const int sequence = block_index_now(2), head = block_index_now(1);
      bf16* to = query_tiles + step % 2 * 2 * queries * D;
      Tile<D>::template load<queries, Shape::threads, checked>(to, arguments.q.rows(sequence, head),
                                                               arguments.q.row_stride, step * queries,
                                                               arguments.queries, arguments.head_dim);
      Tile<D>::template load<queries, Shape::threads, checked>(
          to + queries * D, arguments.dout.rows(sequence, head), arguments.dout.row_stride, step * queries,
          arguments.queries, arguments.head_dim);
      copy_async_commit();
    };
    // lse and delta are copied through registers, because their rows are not aligned. lse = infinity: an
    // absent query has p = 0.
    float lse = 0, delta = 0;
    const auto fetch_terms = [&](int step) {
      const int head_index = block_index_now(2) * arguments.heads + block_index_now(1);
      const int thread = opaque(static_cast<int>(threadIdx.x)), query = step * queries + thread;
      const std::int64_t scalar = static_cast<std::int64_t>(head_index) * arguments.queries + query;
      const bool present = thread < queries && query < arguments.queries;
      lse = present ? arguments.lse[scalar] : INFINITY;
      delta = present ? arguments.delta[scalar] : 0.0f;
    };
    const auto store_terms = [&](int step) {
      const int thread = opaque(static_cast<int>(threadIdx.x));
      if (thread >= queries) return;
      float* to = query_terms + step % 2 * 2 * queries + thread;
      const float position = static_cast<float>(step * queries + thread + offset - block_index_now(0) * keys);
      to[0] = -(prior ? fmaf(slope_now() * log2_e, position, lse * log2_e) : lse * log2_e);
      to[queries] = -delta;
    };

    KeySums<Shape, !deterministic> sums;
    const auto ds_tile_of = [&](int step) { return ds_tiles + step % 2 * keys * queries; };
    const auto workspace_tile = [&](int step) {
      return (block_index_now(2) * arguments.heads + block_index_now(1)) *
                 DqSums<D>::tiles(arguments.queries) +
             step;
    };
    // Registers are short, and these two choices give the fewest spills. early_terms: the next step's terms
    // are fetched and stored at the beginning of a step. new_addresses: the addresses of the last two
    // products are computed again.
    constexpr bool early_terms = !deterministic && !prior, new_addresses = deterministic != prior;
    const auto add_dq = [&](int step) {
      QuerySums<D> dq = {};
      multiply_ds<Shape>(dq, ds_tile_of(step), k_tile);
      add_to_workspace<D>(dq, dq_sum, workspace_tile(step));
    };
    const auto compute = [&]<bool masked>(int step, std::bool_constant<masked>) {
      copy_async_wait<0>();
      __syncthreads();  // tile `step` has come, and no thread reads the tile that the next copy overwrites
      if (early_terms && step > first) fetch_terms(step - 1);
      // The barrier has made S of the previous step visible.
      if (!deterministic && step + 1 < steps) add_dq(step + 1);
      if (step > first) load(step - 1, std::false_type{});
      if (early_terms && step > first) store_terms(step - 1);
      const int lane = opaque(static_cast<int>(threadIdx.x) % 32);
      const typename Tile<D>::Lanes lanes(lane);
      bf16* q_tile = query_tiles + step % 2 * 2 * queries * D;
      bf16* dout_tile = q_tile + queries * D;
      const float* terms = query_terms + step % 2 * 2 * queries + warp_query + 2 * (lane % 4);
      const int row = warp_key + lane / 4,
                first_lag =
                    block_index_now(0) * keys + row - (step * queries + warp_query + 2 * (lane % 4) + offset);

      Scores<Shape> p = {}, ds;
      if constexpr (prior) begin_at_row_terms(p, slope_terms, row);
      multiply_rows<D>(p, k_tile, warp_key, q_tile, warp_query, lanes);
      exponentiate<Shape>(p, terms, scale2);
      if constexpr (masked)
        mask<Shape>(p, first_lag, arguments.keys - block_index_now(0) * keys - row, arguments.causal);
      begin_at<Shape>(ds, terms + queries);
      multiply_rows<D>(ds, v_tile, warp_key, dout_tile, warp_query, lanes);
#pragma unroll
      for (int t = 0; t < Shape::key_tiles; ++t)
#pragma unroll
        for (int n = 0; n < Shape::warp_queries / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) ds[t][n][i] *= p[t][n][i];
      if constexpr (prior) {
        const int thread = opaque(static_cast<int>(threadIdx.x));
        const Place<Shape> now(thread);
        const int first_key_now = block_index_now(0) * keys + now.warp_key + thread % 32 / 4;
        const int middle = step * queries + now.warp_query + Shape::warp_queries / 2 + offset;
        add_prior(sums, ds, static_cast<float>(first_key_now - middle));
      }
      if (!early_terms && step > first) fetch_terms(step - 1);  // not earlier: registers are free only here
      if constexpr (!deterministic) put_ds<Shape>(ds, ds_tile_of(step), warp_key, warp_query, lane);
      const auto add_products = [&](int first_query, typename Tile<D>::Lanes now) {
        multiply_packed<D>(sums.dv, p, dout_tile, first_query, now);
        multiply_packed<D>(sums.dk, ds, q_tile, first_query, now);
      };
      if constexpr (!new_addresses) {
        add_products(warp_query, lanes);
      } else {
        const int thread = opaque(static_cast<int>(threadIdx.x));
        add_products(Place<Shape>(thread).warp_query, typename Tile<D>::Lanes(thread % 32));
      }
      if (!early_terms && step > first) store_terms(step - 1);
    };

    Tile<D>::template load<keys, Shape::threads, true>(
        k_tile, arguments.k.rows(static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)),
        arguments.k.row_stride, first_key, arguments.keys, arguments.head_dim);
    Tile<D>::template load<keys, Shape::threads, true>(
        v_tile, arguments.v.rows(static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)),
        arguments.v.row_stride, first_key, arguments.keys, arguments.head_dim);
    if constexpr (prior) store_row_terms<keys>(slope_terms, slope_now() / arguments.scale);
    int step = steps - 1;
    load(step, std::true_type{});  // only this tile can reach beyond the queries
    fetch_terms(step);
    store_terms(step);
#pragma unroll 1
    for (; step >= max(full, first); --step) compute(step, std::false_type{});
#pragma unroll 1
    for (; step >= first; --step) compute(step, std::true_type{});
    if (!deterministic && first < steps) {
      __syncthreads();
      add_dq(first);
    }

    const Place<Shape> end(opaque(static_cast<int>(threadIdx.x)));
    const int sequence = block_index_now(2), head = block_index_now(1), end_key = block_index_now(0) * keys;
    const std::int64_t key_scalar =
        (static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.keys;
    const GradientRows dk{arguments.dk.rows(sequence, head),
                          arguments.dk.row_stride,
                          arguments.keys,
                          arguments.head_dim,
                          arguments.content_dim,
                          arguments.scale,
                          arguments.dk_lanes ? arguments.dk_lanes + key_scalar * arguments.lanes : nullptr,
                          arguments.lanes,
                          arguments.scale};
    const GradientRows dv{arguments.dv.rows(sequence, head),
                          arguments.dv.row_stride,
                          arguments.keys,
                          arguments.head_dim,
                          arguments.head_dim,
                          1.0f};
    finish_gradients(sums, k_tile, dk, dv, end_key, end);
    if constexpr (prior)
      finish_prior(sums, reinterpret_cast<float2*>(query_terms),
                   arguments.dkey_bias ? arguments.dkey_bias + key_scalar : nullptr,
                   arguments.dslope ? arguments.dslope + key_scalar : nullptr, arguments.keys, end_key, end);
  }
}

template <int D, Family family>
void launch_keys(const BackwardArguments<bf16>& arguments, int batch, float* dq_sum, Stream stream) {
  using Shape = BackwardKeysTraits<D, family>;
  const bool prior = arguments.slope || arguments.dkey_bias || arguments.dslope;
  const auto start = [&](auto kernel, int shared_bytes) {
    for_each_part(batch, [&](int first, int sequences) {
      const Grid grid(divide_up(arguments.keys, Shape::keys), arguments.heads, sequences);
      float* const part = dq_sum ? dq_sum + DqSums<D>::elements(first, arguments) : nullptr;
      enqueue(kernel, grid, Shape::threads, shared_bytes, stream, arguments.after(first),
              arguments.scale * log2_e, part);
    });
  };
  if (!dq_sum)
    start(prior ? attention_backward_keys_kernel<D, family, true, true>
                : attention_backward_keys_kernel<D, family, false, true>,
          Shape::shared_bytes);
  else if constexpr (has_dq_form<D, family>)
    start(prior ? attention_backward_keys_kernel<D, family, true, false>
                : attention_backward_keys_kernel<D, family, false, false>,
          Shape::shared_bytes + 2 * Shape::ds_bytes);
}

}  // namespace

bool can_add_dq(int head_dim, Family family) {
  bool possible = false;
  with_tile_shape(
      head_dim, family,
      [&]<int D, Family chosen>(std::integral_constant<int, D>, std::integral_constant<Family, chosen>) {
        possible = has_dq_form<D, chosen>;
      });
  return possible;
}

void attention_backward_keys(const BackwardArguments<bf16>& arguments, int batch, Family family,
                             float* dq_sum, Stream stream) {
  with_tile_shape(
      arguments.head_dim, family,
      [&]<int D, Family chosen>(std::integral_constant<int, D>, std::integral_constant<Family, chosen>) {
        launch_keys<D, chosen>(arguments, batch, dq_sum, stream);
      });
}

}  // namespace goat::GOAT_TARGET
