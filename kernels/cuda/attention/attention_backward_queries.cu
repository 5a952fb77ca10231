// Attention, backward, the pass over queries on tensor cores: dQ = scale S K. Only one block
// adds to a row of dQ.
//
// A block owns `queries` rows of one head, each warp 16 * row_tiles of them. It walks over tiles of keys from
// the diagonal back to key 0, as the forward pass does. The tiles that need a mask come first. The block
// forms S = Q K^T and dP = dO V^T again. The accumulators of dS, rounded to bf16, are the A operand of dS K.
// K and V of the next tile are copied while the block computes this one.
//
// p = 2^(scale log2(e) <q,k> + slope2 (j - j0) - row_term_i), where slope2 = slope log2(e), j0 is the
// thread's first key of the tile and row_term_i = lse_i log2(e) + slope2 (i' - j0). The slope costs one FMA a
// logit, with a constant factor j - j0.
//
// Memory traffic of a block: Q and dO once, K and V once for each block of queries that sees them, dQ once.
// FLOPs: 6 D a (query, key) pair. A warp's step of `keys` keys, with t = row_tiles = 2:
//   mma           2 t (keys/8) (D/16)  +  t (keys/16) (D/8)          S and dP, dQ
//   ldmatrix.x4   2 (t + keys/16) (D/16)  +  (keys/16) (D/16)
//   copies        4 keys D bytes a block; 16-byte cp.async: keys D / (4 threads) a thread
// The kernel contains the step twice (with and without a mask), the copies of Q and dO (queries
// D / (4 threads)) and the copies of the first K and V. test/test_cuda_sass.py counts these instructions
// in the machine code.
//   D = 32: HMMA 192, LDSM 64, LDGSTS 20
//   D = 64, large_shared: HMMA 384, LDSM 128, LDGSTS 40
//   D = 64, small_shared: HMMA 192, LDSM 80, LDGSTS 28
//   D = 128: HMMA 384, LDSM 160, LDGSTS 56
#include "kernels/cuda/attention/attention_backward.cuh"

namespace goat::GOAT_TARGET {

namespace {

template <class Shape>
using Scores = float[Shape::row_tiles][Shape::keys / 8][4];

// s becomes p. lse2: lse log2(e), beginning at the thread's first row. first_lag: (position of the thread's
// first row) - (the thread's first key).
template <class Shape, bool has_slope>
__device__ __forceinline__ void exponentiate(Scores<Shape>& s, const float* lse2, float scale2, float slope2,
                                             int first_lag) {
#pragma unroll
  for (int t = 0; t < Shape::row_tiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * t + 8 * half;
      const float row_term =
          has_slope ? fmaf(slope2, static_cast<float>(first_lag + row), lse2[row]) : lse2[row];
#pragma unroll
      for (int n = 0; n < Shape::keys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& value = s[t][n][2 * half + i];
          value = fmaf(value, scale2, -row_term);
          if constexpr (has_slope) value = fmaf(slope2, static_cast<float>(8 * n + i), value);
          value = exp2_approximate(value);
        }
    }
}

// p = 0 where key (the thread's first key + 8 n + i) is absent or hidden from the query. first_lag: as in
// exponentiate(). keys_left: the number of keys from the thread's first key on.
template <class Shape>
__device__ __forceinline__ void mask(Scores<Shape>& p, int first_lag, int keys_left, bool causal) {
#pragma unroll
  for (int t = 0; t < Shape::row_tiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int limit = causal ? min(first_lag + 16 * t + 8 * half + 1, keys_left) : keys_left;
#pragma unroll
      for (int n = 0; n < Shape::keys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (8 * n + i >= limit) p[t][n][2 * half + i] = 0;
    }
}

// grid (tiles of queries, H, B). The last tile comes first, because it sees most keys. The tiles of a head
// run at the same time and share its K and V in L2.
template <int D, Family family, bool has_slope>
__global__ void __launch_bounds__(BackwardQueriesTraits<D, family>::threads,
                                  BackwardQueriesTraits<D, family>::blocks_per_multiprocessor)
    attention_backward_queries_kernel(const BackwardArguments<bf16> arguments, float scale2) {
  if constexpr (compiled_for<family>) {
    using Shape = BackwardQueriesTraits<D, family>;
    constexpr int keys = Shape::keys, queries = Shape::queries;
    state_dynamic_shared<Shape::shared_bytes>();
    bf16* const q_tile = dynamic_shared<bf16>();
    bf16* const dout_tile = q_tile + queries * D;
    bf16* const key_tiles = dout_tile + queries * D;  // 2 x (K, V)
    float* const row_lse2 = reinterpret_cast<float*>(q_tile + Shape::tile_elements);
    float* const row_delta = row_lse2 + queries;
    float* const row_sum = row_delta + queries;  // the sum of S over the keys so far

    const auto first_query_of = [](int block) { return (static_cast<int>(gridDim.x) - 1 - block) * queries; };
    const int first_query = first_query_of(static_cast<int>(blockIdx.x));
    const auto warp_row_of = [](int thread) { return thread / 32 * 16 * Shape::row_tiles; };
    const int offset = arguments.keys - arguments.queries;  // i' - i

    const int last_query = min(first_query + queries, arguments.queries) - 1;
    const int seen = arguments.causal ? last_query + offset + 1 : arguments.keys;
    const int steps = (seen + keys - 1) / keys;
    // Every query sees all keys of the tiles [0, full).
    const int full = (arguments.causal ? min(first_query + offset + 1, seen) : seen) / keys;

    // block_index_now() and opaque() make the compiler compute addresses again in every step, because
    // registers are short.
    const auto load = [&]<bool checked>(int step, std::bool_constant<checked>) {
      const int sequence = block_index_now(2), head = block_index_now(1);
      bf16* to = key_tiles + step % 2 * 2 * keys * D;
      Tile<D>::template load<keys, Shape::threads, checked>(to, arguments.k.rows(sequence, head),
                                                            arguments.k.row_stride, step * keys,
                                                            arguments.keys, arguments.head_dim);
      Tile<D>::template load<keys, Shape::threads, checked>(to + keys * D, arguments.v.rows(sequence, head),
                                                            arguments.v.row_stride, step * keys,
                                                            arguments.keys, arguments.head_dim);
      copy_async_commit();
    };

    const int block_sequence = static_cast<int>(blockIdx.z), block_head = static_cast<int>(blockIdx.y);
    const auto head_rows = [&](int sequence, int head) {
      return (static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.queries;
    };
    Tile<D>::template load<queries, Shape::threads, true>(
        q_tile, arguments.q.rows(block_sequence, block_head), arguments.q.row_stride, first_query,
        arguments.queries, arguments.head_dim);
    Tile<D>::template load<queries, Shape::threads, true>(
        dout_tile, arguments.dout.rows(block_sequence, block_head), arguments.dout.row_stride, first_query,
        arguments.queries, arguments.head_dim);
    int step = steps - 1;
    load(step, std::true_type{});  // only this tile can reach beyond the keys

    static_assert(Shape::threads == queries);
    const std::int64_t first_scalar = head_rows(block_sequence, block_head);
    const int query = first_query + static_cast<int>(threadIdx.x);
    // lse = infinity: an absent query has p = 0.
    row_lse2[threadIdx.x] =
        query < arguments.queries ? arguments.lse[first_scalar + query] * log2_e : INFINITY;
    row_sum[threadIdx.x] = 0;
    row_delta[threadIdx.x] = query < arguments.queries ? arguments.delta[first_scalar + query] : 0.0f;

    float dq[Shape::row_tiles][D / 8][4] = {};
    const auto compute = [&]<bool masked>(int tile, std::bool_constant<masked>) {
      copy_async_wait<0>();
      __syncthreads();  // the tile has come, and no thread reads the tile that the next copy overwrites
      if (tile > 0) load(tile - 1, std::false_type{});
      const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % 32,
                warp_row = warp_row_of(thread);
      const typename Tile<D>::Lanes lanes(lane);
      bf16* k_tile = key_tiles + tile % 2 * 2 * keys * D;
      bf16* v_tile = k_tile + keys * D;
      const int key = tile * keys + 2 * (lane % 4),
                first_lag = first_query_of(block_index_now(0)) + warp_row + lane / 4 + offset - key;

      const float slope2 = has_slope ? arguments.slope[block_index_now(1)] * log2_e : 0.0f;

      Scores<Shape> p = {}, ds;
      multiply_rows<D>(p, q_tile, warp_row, k_tile, 0, lanes);
      exponentiate<Shape, has_slope>(p, row_lse2 + warp_row + lane / 4, scale2, slope2, first_lag);
      if constexpr (masked) mask<Shape>(p, first_lag, arguments.keys - key, arguments.causal);
#pragma unroll
      for (int t = 0; t < Shape::row_tiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float negative_delta = -row_delta[warp_row + lane / 4 + 16 * t + 8 * (i / 2)];
#pragma unroll
          for (int n = 0; n < keys / 8; ++n) ds[t][n][i] = negative_delta;
        }
      multiply_rows<D>(ds, dout_tile, warp_row, v_tile, 0, lanes);
#pragma unroll
      for (int t = 0; t < Shape::row_tiles; ++t)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          float sum = 0;
#pragma unroll
          for (int n = 0; n < keys / 8; ++n)
#pragma unroll
            for (int i = 2 * part; i < 2 * part + 2; ++i) {
              ds[t][n][i] *= p[t][n][i];
              sum += ds[t][n][i];
            }
          sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
          sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
          const int writer = opaque(thread);
          if (writer % 4 == 0) row_sum[warp_row_of(writer) + writer % 32 / 4 + 16 * t + 8 * part] += sum;
        }
      multiply_packed<D>(dq, ds, k_tile, 0, lanes);
    };
#pragma unroll 1
    for (; step >= full; --step) compute(step, std::true_type{});
#pragma unroll 1
    for (; step >= 0; --step) compute(step, std::false_type{});

    const int sequence = block_index_now(2), head = block_index_now(1);
    __syncwarp();  // only this warp uses its row sums
    // `out` was rounded, so delta = <dout, out> has an error and the rows of S do not sum to 0. The sum of a
    // row corrects its delta for the pass over keys.
    const int own = opaque(static_cast<int>(threadIdx.x)),
              own_query = first_query_of(block_index_now(0)) + own;
    if (own_query < arguments.queries)
      arguments.delta[head_rows(sequence, head) + own_query] = row_delta[own] + row_sum[own];
    const GradientRows to{
        arguments.dq.rows(sequence, head),
        arguments.dq.row_stride,
        arguments.queries,
        arguments.head_dim,
        arguments.content_dim,
        arguments.scale,
        arguments.dq_lanes ? arguments.dq_lanes + head_rows(sequence, head) * arguments.lanes : nullptr,
        arguments.lanes,
        1.0f};
    const int row = warp_row_of(opaque(static_cast<int>(threadIdx.x)));
    // Only this warp reads these rows of the Q tile.
    store_gradient<D>(dq, q_tile + row * D, to, first_query_of(block_index_now(0)) + row);
  }
}

template <int D, Family family>
void launch_queries(const BackwardArguments<bf16>& arguments, int batch, Stream stream) {
  using Shape = BackwardQueriesTraits<D, family>;
  const auto kernel = arguments.slope ? attention_backward_queries_kernel<D, family, true>
                                      : attention_backward_queries_kernel<D, family, false>;
  for_each_part(batch, [&](int first, int sequences) {
    const Grid grid(divide_up(arguments.queries, Shape::queries), arguments.heads, sequences);
    enqueue(kernel, grid, Shape::threads, Shape::shared_bytes, stream, arguments.after(first),
            arguments.scale * log2_e);
  });
}

}  // namespace

void attention_backward_queries(const BackwardArguments<bf16>& arguments, int batch, Family family,
                                Stream stream) {
  with_tile_shape(
      arguments.head_dim, family,
      [&]<int D, Family chosen>(std::integral_constant<int, D>, std::integral_constant<Family, chosen>) {
        launch_queries<D, chosen>(arguments, batch, stream);
      });
}

}  // namespace goat::GOAT_TARGET
