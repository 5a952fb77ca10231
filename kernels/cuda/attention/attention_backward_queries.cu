// Attention, backward, the pass over queries on tensor cores: dQ = scale dS K. Only one block adds to a row
// of dQ.
//
// A block owns `queries` rows of one head, each warp 16 * row_tiles of them. It walks over tiles of keys from
// the diagonal back to key 0, as the forward pass does. The tiles that need a mask come first. The block
// forms S = Q K^T and dP = dO V^T again. dS, rounded to bf16, is the A operand of dS K in the registers in
// which it was formed. K and V of the next tile are copied while the block computes this one. The slope costs
// one FMA a logit, with a constant factor j - j0. With a key bias the accumulators of Q K^T begin at the
// terms of the keys, as in the forward pass. The slope is part of these terms, so neither costs anything a
// logit.
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

// The block's shared memory. Tiles of keys are stored by the parity of the step: one is computed while the
// next one comes.
template <class Shape>
struct QueriesMemory {
  static constexpr int D = Shape::head_dim;
  bf16 *const q = dynamic_shared<bf16>(), *const dout = q + Shape::queries * D;  // the block's queries
  bf16* const key_tiles = dout + Shape::queries * D;                             // 2 x (K, V)
  float* const lse2 = reinterpret_cast<float*>(q + Shape::tile_elements);        // lse log2(e)
  float* const delta = lse2 + Shape::queries;
  float* const ds_sum = delta + Shape::queries;  // the sum of dS over the keys so far
  float4* const terms = reinterpret_cast<float4*>(ds_sum + Shape::queries);  // of the columns of two steps

  __device__ __forceinline__ bf16* k(int step) const { return key_tiles + step % 2 * 2 * Shape::keys * D; }
  __device__ __forceinline__ bf16* v(int step) const { return k(step) + Shape::keys * D; }
  __device__ __forceinline__ float4* column_terms(int step) const {
    return terms + step % 2 * (Shape::keys / 2);
  }
};

// P = 0 where the key is absent or hidden from the query. first_lag: (position of the thread's first row) -
// (the thread's first key). keys_left: the number of keys from the thread's first key on.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void mask(Fragments<row_tiles, column_tiles>& p, int first_lag, int keys_left,
                                     bool causal) {
  unrolled<2 * row_tiles>([&](int r) {
    const int limit = causal ? min(first_lag + 8 * r + 1, keys_left) : keys_left;
    for_each_in_row(p, r, [&](float& value, int key) {
      if (key >= limit) value = 0;
    });
  });
}

// What a block owns, and the walk over the keys. Every query sees all keys of the steps [0, full).
template <int D, Family family, Terms kind>
struct QueriesBlock {
  static constexpr bool has_slope = kind == Terms::slope, has_key_bias = kind == Terms::key_bias;
  using Shape = BackwardQueriesTraits<D, family>;
  using Lanes = typename Tile<D>::Lanes;
  using Scores = Fragments<Shape::row_tiles, Shape::keys / 8>;  // a warp's part of S, P, dP or dS
  using DqSum = Fragments<Shape::row_tiles, D / 8>;
  static constexpr int keys = Shape::keys, queries = Shape::queries, thread_rows = 2 * Shape::row_tiles;

  const BackwardArguments<bf16>& arguments;
  const float scale2;
  const QueriesMemory<Shape> memory;
  const int steps, full;

  __device__ __forceinline__ QueriesBlock(const BackwardArguments<bf16>& arguments_, float scale2_)
      : arguments(arguments_),
        scale2(scale2_),
        steps((seen() + keys - 1) / keys),
        full((arguments.causal ? min(first_query() + offset() + 1, seen()) : seen()) / keys) {}

  // i' - i
  __device__ __forceinline__ int offset() const { return arguments.keys - arguments.queries; }
  // The number of keys that the block's last query sees.
  __device__ __forceinline__ int seen() const {
    const int last_query = min(first_query() + queries, arguments.queries) - 1;
    return arguments.causal ? last_query + offset() + 1 : arguments.keys;
  }

  // The whole pass. Adds dS K to dq.
  __device__ __forceinline__ void walk(DqSum& dq) const {
    load_queries();
    load_keys<true>(steps - 1);  // only this tile can reach beyond the keys
    store_scalars();
    if constexpr (has_key_bias) store_terms(steps - 1, fetch_bias(steps - 1));
    const int step = count_down(steps - 1, full, [&](int n) { take_keys<true>(n, dq); });
    count_down(step, 0, [&](int n) { take_keys<false>(n, dq); });
  }

  // One step. It also starts the copies for the step after it (step - 1).
  template <bool masked>
  __device__ __forceinline__ void take_keys(int step, DqSum& dq) const {
    copy_async_wait<0>();
    __syncthreads();  // the tile has come, and no thread reads the tile that the next copy overwrites
    if (step > 0) load_keys<false>(step - 1);

    const int thread = thread_now(), lane = thread % 32, warp_row = warp_row_of(thread);
    const int row = warp_row + lane / 4;  // this thread's first
    const Lanes lanes(lane);
    Scores p = {}, ds;
    form_p<masked>(p, step, warp_row, lane, lanes);
    form_dp(ds, step, warp_row, row, lanes);
    form_ds(ds, p, thread);
    double next_bias = 0;  // fetched late, because registers are short until dS has taken the place of P
    if (has_key_bias && step > 0) next_bias = fetch_bias(step - 1);
    add_product<D>(dq, ds, memory.k(step), 0, lanes);
    if (has_key_bias && step > 0) store_terms(step - 1, next_bias);
  }

  // P = 2^(scale2 Q K^T + slope2 (j - j0) - row_term), slope2 = slope log2(e), j0 the thread's first key,
  // row_term_i = lse_i log2(e) + slope2 (i' - j0). With a key bias the terms are in S, and row_term_i is
  // lse2.
  template <bool masked>
  __device__ __forceinline__ void form_p(Scores& p, int step, int warp_row, int lane, Lanes lanes) const {
    const int key = step * keys + 2 * (lane % 4), row = warp_row + lane / 4,
              first_lag = first_query_now() + row + offset() - key;
    const float slope2 = has_slope ? arguments.slope[head_now()] * log2_e : 0.0f;
    if constexpr (has_key_bias) begin_at_column_terms(p, memory.column_terms(step));
    add_product_of_rows<D>(p, memory.q, warp_row, memory.k(step), 0, lanes);
    unrolled<thread_rows>([&](int r) {
      const float lse2 = memory.lse2[row + 8 * r];
      const float row_term = has_slope ? fmaf(slope2, static_cast<float>(first_lag + 8 * r), lse2) : lse2;
      for_each_in_row(p, r, [&](float& value, int column) {
        value = fmaf(value, scale2, -row_term);
        if constexpr (has_slope) value = fmaf(slope2, static_cast<float>(column), value);
        value = exp2_approximate(value);
      });
    });
    if constexpr (masked) mask(p, first_lag, arguments.keys - key, arguments.causal);
  }

  // dP = dO V^T - delta
  __device__ __forceinline__ void form_dp(Scores& dp, int step, int warp_row, int row, Lanes lanes) const {
    unrolled<thread_rows>([&](int r) {
      const float negative_delta = -memory.delta[row + 8 * r];
      for_each_in_row(dp, r, [&](float& value, int) { value = negative_delta; });
    });
    add_product_of_rows<D>(dp, memory.dout, warp_row, memory.v(step), 0, lanes);
  }

  // dS = P dP, value by value, and ds_sum_i += sum_j dS_ij
  __device__ __forceinline__ void form_ds(Scores& ds, const Scores& p, int thread) const {
    unrolled<thread_rows>([&](int r) {
      float sum = 0;
      for_each_in_row(ds, r, [&](float& value, int column) {
        value *= value_of(p, r, column);
        sum += value;
      });
      sum = sum_of_lanes(sum);
      const int writer = opaque(thread);
      if (writer % 4 == 0) memory.ds_sum[warp_row_of(writer) + writer % 32 / 4 + 8 * r] += sum;
    });
  }

  // `out` was rounded, so delta = <dout, out> has an error and the rows of dS do not sum to 0. The sum of a
  // row corrects its delta for the pass over keys.
  __device__ __forceinline__ void correct_deltas() const {
    const int sequence = sequence_now(), head = head_now();
    __syncwarp();  // only this warp uses its row sums
    const int own = thread_now(), query = first_query_now() + own;
    if (query < arguments.queries)
      arguments.delta[head_queries(sequence, head) + query] = memory.delta[own] + memory.ds_sum[own];
  }

  // Stores dQ, and the lanes' part of it.
  __device__ __forceinline__ void store(const DqSum& dq) const {
    const int sequence = sequence_now(), head = head_now();
    const GradientRows to{.rows = arguments.dq.head(sequence, head),
                          .count = arguments.queries,
                          .head_dim = arguments.head_dim,
                          .content_dim = arguments.content_dim,
                          .scale = arguments.scale,
                          .lanes = arguments.dq_lanes
                                       ? arguments.dq_lanes + head_queries(sequence, head) * arguments.lanes
                                       : nullptr,
                          .lane_count = arguments.lanes,
                          .lane_scale = 1.0f};
    const int warp_row = warp_row_of(thread_now());
    // Only this warp reads these rows of the Q tile.
    store_gradient<D>(dq, memory.q + warp_row * D, to, first_query_now() + warp_row);
  }

  __device__ __forceinline__ void load_queries() const {
    const int sequence = static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);
    Tile<D>::template load<queries, Shape::threads, true>(
        memory.q, arguments.q.head(sequence, head), first_query(), arguments.queries, arguments.head_dim);
    Tile<D>::template load<queries, Shape::threads, true>(memory.dout, arguments.dout.head(sequence, head),
                                                          first_query(), arguments.queries,
                                                          arguments.head_dim);
  }

  // Starts the copies of a step's K and V. `checked`: some of its keys may be absent.
  template <bool checked>
  __device__ __forceinline__ void load_keys(int step) const {
    const int sequence = sequence_now(), head = arguments.key_head(head_now());
    Tile<D>::template load<keys, Shape::threads, checked>(memory.k(step), arguments.k.head(sequence, head),
                                                          step * keys, arguments.keys, arguments.head_dim);
    Tile<D>::template load<keys, Shape::threads, checked>(memory.v(step), arguments.v.head(sequence, head),
                                                          step * keys, arguments.keys, arguments.head_dim);
    copy_async_commit();
  }

  // This thread's key bias of a step, on its way to the step's terms.
  __device__ __forceinline__ double fetch_bias(int step) const {
    return fetch_key_bias<keys>(arguments.key_bias.keys(sequence_now(), head_now()), step * keys,
                                arguments.keys);
  }
  __device__ __forceinline__ void store_terms(int step, double bias) const {
    store_column_term<keys>(memory.column_terms(step), terms_now(), step * keys, bias,
                            arguments.inverse_scale);
  }
  // Relative to the position of the block's first query.
  __device__ __forceinline__ KeyTerms terms_now() const {
    return key_terms(arguments, sequence_now(), head_now(), first_query_now() + offset());
  }

  // lse and delta of the block's queries. lse = infinity: an absent query has p = 0. With a key bias the
  // row's own term is added to lse.
  __device__ __forceinline__ void store_scalars() const {
    static_assert(Shape::threads == queries);
    const int row = static_cast<int>(threadIdx.x), query = first_query() + row;
    const std::int64_t first = head_queries(static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y));
    const bool present = query < arguments.queries;
    float lse = present ? arguments.lse[first + query] : INFINITY;
    if (has_key_bias && present)
      lse += terms_now().at(query + offset(),
                            arguments.key_bias.at(sequence_now(), head_now(), query + offset()));
    memory.lse2[row] = lse * log2_e;
    memory.ds_sum[row] = 0;
    memory.delta[row] = present ? arguments.delta[first + query] : 0.0f;
  }

  // The last tile of queries comes first.
  static __device__ __forceinline__ int first_query_of(int tile) {
    return (static_cast<int>(gridDim.x) - 1 - tile) * queries;
  }
  static __device__ __forceinline__ int first_query() { return first_query_of(static_cast<int>(blockIdx.x)); }
  static __device__ __forceinline__ int first_query_now() { return first_query_of(tile_now()); }
  static __device__ __forceinline__ int warp_row_of(int thread) {
    return thread / 32 * 16 * Shape::row_tiles;
  }
  // The first query of a head in [B, H, T_q].
  __device__ __forceinline__ std::int64_t head_queries(int sequence, int head) const {
    return (static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.queries;
  }
};

// grid (tiles of queries, H, B). The last tile comes first, because it sees most keys. The tiles of a head
// run at the same time and share its K and V in L2.
template <int D, Family family, Terms kind>
__global__ void __launch_bounds__(BackwardQueriesTraits<D, family>::threads,
                                  BackwardQueriesTraits<D, family>::blocks_per_multiprocessor)
    attention_backward_queries_kernel(const BackwardArguments<bf16> arguments, float scale2) {
  if constexpr (compiled_for<family>) {
    using Block = QueriesBlock<D, family, kind>;
    state_dynamic_shared<shared_bytes_with<typename Block::Shape, kind>>();
    const Block block(arguments, scale2);
    typename Block::DqSum dq = {};
    block.walk(dq);
    block.correct_deltas();
    block.store(dq);
  }
}

template <int D, Family family>
void launch_queries(const BackwardArguments<bf16>& arguments, int batch, Stream stream) {
  using Shape = BackwardQueriesTraits<D, family>;
  with_terms(arguments, [&]<Terms kind>(std::integral_constant<Terms, kind>) {
    for_each_part(batch, [&](int first, int sequences) {
      const Grid grid(divide_up(arguments.queries, Shape::queries), arguments.heads, sequences);
      enqueue(attention_backward_queries_kernel<D, family, kind>, grid, Shape::threads,
              shared_bytes_with<Shape, kind>, stream, arguments.after(first), arguments.scale * log2_e);
    });
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
