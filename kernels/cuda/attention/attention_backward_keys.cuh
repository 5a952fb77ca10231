// Attention, backward, the pass over keys on tensor cores:
//   dV = P^T dO,  dK = scale dS^T Q,  and for the prior dU and dslope from dS in fp32, before dS is rounded
//   to bf16 for the product. In the form with dQ (deterministic = false) also dQ = scale dS K, by shares.
//
// A block owns a tile of keys of one head of k and v. It walks over the heads of q that share them, one after
// the other, and for each head over tiles of queries from the last one back to the diagonal, so the tiles
// that need a mask come last. dK and dV grow over all these heads; dU and dslope are one number a key and
// head of q, stored at the end of each head. S^T, P^T, dP^T and dS^T have keys in rows; so P^T and dS^T are
// the A operands of the last two products in the registers in which they were formed. K and V stay in shared
// memory. Q, dO, lse and delta of the next tile are fetched while the block computes this one. Where two
// warps share keys, each takes half of the queries. Their sums are added at the end, always in the same
// order.
//
// Logits are relative to the block's first key:
//   p = 2^(scale log2(e) (<q,k> + (slope / scale) (j - key0)) - row_term_i),
//   row_term_i = lse_i log2(e) + slope log2(e) (i' - key0).
// For a distant query the slope's term and the log-sum-exp are large; they cancel in row_term_i. The
// accumulators of K Q^T begin at the slope's term, which is the same in every step. A key bias enters in the
// same places: the difference to the bias of the block's first key, formed in double (KeyTerms).
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
//
// The kernel contains the step twice (with and without a mask), the copies of K and V (keys
// D / (4 threads)) and the copies of the first Q and dO. It contains the products of dQ three times: in
// both steps (for the previous step) and after the last step. test/test_cuda_sass.py counts these
// instructions in the machine code. Each attention_backward_keys_D.cu compiles the kernels for one D, so that
// the three are compiled at the same time.
//   D = 32: HMMA 128, LDSM 48, LDGSTS 10
//   D = 32, with dQ: HMMA 176, LDSM 96, LDGSTS 10
//   D = 64: HMMA 256, LDSM 96, LDGSTS 20
//   D = 64, with dQ: HMMA 352, LDSM 168, LDGSTS 20
//   D = 128, large_shared: HMMA 512, LDSM 288, LDGSTS 40
//   D = 128, large_shared, with dQ: HMMA 704, LDSM 408, LDGSTS 40
//   D = 128, small_shared: HMMA 256, LDSM 160, LDGSTS 32
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/attention_backward_keys_sums.cuh"
#include "kernels/cuda/attention/attention_dq_sums.cuh"

namespace goat::GOAT_TARGET {

namespace {

// The block's shared memory. Tiles of queries and of dS^T are stored by the parity of the step: one is
// computed while the next one comes.
template <class Shape>
struct KeysMemory {
  static constexpr int D = Shape::head_dim;
  bf16 *const k = dynamic_shared<bf16>(), *const v = k + Shape::keys * D;           // the block's keys
  bf16* const query_tiles = v + Shape::keys * D;                                    // 2 x (Q, dO)
  float* const query_scalars = reinterpret_cast<float*>(k + Shape::tile_elements);  // 2 x (-row_term, -delta)
  float4* const row_terms = reinterpret_cast<float4*>(query_scalars + 4 * Shape::queries);  // of the keys
  bf16* const ds_tiles = reinterpret_cast<bf16*>(row_terms + Shape::keys / 2);  // 2 x dS^T, with dQ only

  __device__ __forceinline__ bf16* q(int step) const {
    return query_tiles + step % 2 * 2 * Shape::queries * D;
  }
  __device__ __forceinline__ bf16* dout(int step) const { return q(step) + Shape::queries * D; }
  __device__ __forceinline__ float* negative_row_terms(int step) const {
    return query_scalars + step % 2 * 2 * Shape::queries;
  }
  __device__ __forceinline__ float* negative_deltas(int step) const {
    return negative_row_terms(step) + Shape::queries;
  }
  __device__ __forceinline__ bf16* ds(int step) const {
    return ds_tiles + step % 2 * Shape::keys * Shape::queries;
  }
};

// lse, delta and the key bias at the position of a thread's query, on their way to shared memory.
struct QueryScalars {
  float lse, delta;
  double bias;
};

// P = 0 where the key is absent or hidden from the query. first_lag: (this thread's first key) - (position of
// this thread's first query). keys_left: the number of keys from this thread's first key on.
template <int key_tiles, int query_tiles>
__device__ __forceinline__ void mask(Fragments<key_tiles, query_tiles>& p, int first_lag, int keys_left,
                                     bool causal) {
  unrolled<2 * key_tiles>([&](int r) {
    const int key = 8 * r, first_query = key >= keys_left ? 8 * query_tiles : causal ? first_lag + key : 0;
    for_each_in_row(p, r, [&](float& value, int query) {
      if (query < first_query) value = 0;
    });
  });
}

// What a block owns, and the walk over the queries.
template <int D, Family family, Terms kind, bool grouped, bool deterministic>
struct KeysBlock {
  static constexpr bool prior = kind != Terms::none, has_key_bias = kind == Terms::key_bias;
  using Shape = BackwardKeysTraits<D, family>;
  using Choices = KeysChoices<family, kind, deterministic>;
  using Priors = PriorSums<Shape, !deterministic>;
  using Place = KeyPlace<Shape>;
  using Scores = KeyScores<Shape>;
  static constexpr int keys = Shape::keys, queries = Shape::queries;

  const BackwardArguments<bf16>& arguments;
  const float scale2;
  float* const dq_sum;
  const KeysMemory<Shape> memory;
  const int offset;              // i' - i
  const int steps, first, full;  // read by steps_now(), first_now(), full_now(); with new_bounds not used
  const int member;              // the head of q, counted from the first of its group

  __device__ __forceinline__ KeysBlock(const BackwardArguments<bf16>& arguments_, float scale2_,
                                       float* dq_sum_, int member_ = 0)
      : arguments(arguments_),
        scale2(scale2_),
        dq_sum(dq_sum_),
        offset(arguments.keys - arguments.queries),
        steps(step_count()),
        first(Choices::new_bounds ? 0 : first_step()),
        full(Choices::new_bounds ? 0 : max(full_step(), first)),
        member(member_) {}

  __device__ __forceinline__ int head_now() const {
    return grouped ? block_index_now(1) * arguments.groups.size + opaque(member) : block_index_now(1);
  }
  static __device__ __forceinline__ int key_head_now() { return block_index_now(1); }
  static __device__ __forceinline__ int first_key_now() { return tile_now() * keys; }
  __device__ __forceinline__ float slope_now() const {
    return prior && arguments.slope ? arguments.slope[head_now()] : 0.0f;
  }

  // The steps of a walk are [0, step_count()). Those from full_step() on need no mask. No query of a step
  // below first_step() sees these keys.
  __device__ __forceinline__ int step_count() const { return (arguments.queries + queries - 1) / queries; }
  static __device__ __forceinline__ int first_key() {
    return Choices::new_bounds ? first_key_now() : static_cast<int>(blockIdx.x) * keys;
  }
  __device__ __forceinline__ int first_step() const {
    return arguments.causal ? max(first_key() - offset, 0) / queries : 0;
  }
  __device__ __forceinline__ int full_step() const {
    const int end = first_key() + keys;
    return end > arguments.keys ? step_count()
           : arguments.causal   ? (max(end - 1 - offset, 0) + queries - 1) / queries
                                : 0;
  }
  // The same, from registers or with new_bounds computed at this point.
  __device__ __forceinline__ int steps_now() const { return Choices::new_bounds ? step_count() : steps; }
  __device__ __forceinline__ int first_now() const { return Choices::new_bounds ? first_step() : first; }
  __device__ __forceinline__ int full_now() const { return Choices::new_bounds ? full_step() : full; }

  // One head: S and dS are formed for one tile of queries after another.
  __device__ __forceinline__ void walk(KeySums<Shape>& sums, Priors& prior_sums) const {
    if constexpr (prior) store_key_terms();
    load_queries<true>(steps_now() - 1);  // only this tile can reach beyond the queries
    QueryScalars last = fetch_scalars(steps_now() - 1);
    if constexpr (has_key_bias) last.bias = fetch_bias(steps_now() - 1);
    store_scalars(steps_now() - 1, last);
    int step = steps_now() - 1;
    step = count_down_to(
        step, [&] { return full_now(); }, [&](int n) { take_queries<false>(n, sums, prior_sums); });
    count_down_to(
        step, [&] { return first_now(); }, [&](int n) { take_queries<true>(n, sums, prior_sums); });
    if (!deterministic && first_now() < steps_now()) {
      __syncthreads();  // the last dS^T has come
      add_dq(first_now());
    }
  }

  // One step. It also starts the copies for the step after it (step - 1), and in the form with dQ it adds the
  // share of the step before it (step + 1), so that the one barrier of a step is enough.
  template <bool masked>
  __device__ __forceinline__ void take_queries(int step, KeySums<Shape>& sums, Priors& prior_sums) const {
    const bool another = step > first_now();
    QueryScalars next;  // set only if there is another step
    copy_async_wait<0>();
    __syncthreads();  // tile `step` has come, and no thread reads the tile that the next copy overwrites
    if (Choices::early_scalars && another) next = fetch_scalars(step - 1);
    if (!deterministic && step + 1 < steps_now()) add_dq(step + 1);
    if (another) load_queries<false>(step - 1);
    if (Choices::early_scalars && another) store_scalars(step - 1, next);

    const Place place(thread_now());
    Scores p = {}, ds;
    form_p<masked>(p, step, place);
    form_ds(ds, p, step, place);
    if constexpr (prior) prior_sums.add(ds, lag_to_middle(step, place));
    if (!Choices::early_scalars && another) next = fetch_scalars(step - 1);
    if constexpr (!deterministic)
      store_ds<queries>(memory.ds(step), ds, place.warp_key, place.warp_query, place.lane);
    // dV += P^T dO, dK += dS^T Q (scaled at the end)
    const Place at = Choices::new_addresses ? Place(thread_now()) : place;
    add_product<D>(sums.dv, p, memory.dout(step), at.warp_query, at.lanes);
    if (has_key_bias && another) next.bias = fetch_bias(step - 1);
    add_product<D>(sums.dk, ds, memory.q(step), at.warp_query, at.lanes);
    if (!Choices::early_scalars && another) store_scalars(step - 1, next);
  }

  // P^T = 2^(scale2 (K Q^T + term of the key) - row_term), scale2 = scale log2(e)
  template <bool masked>
  __device__ __forceinline__ void form_p(Scores& p, int step, Place at) const {
    if constexpr (prior) begin_at_row_terms(p, memory.row_terms, at.key());
    add_product_of_rows<D>(p, memory.k, at.warp_key, memory.q(step), at.warp_query, at.lanes);
    for_each_with_column_term(p, memory.negative_row_terms(step) + at.query(),
                              [&](float& value, float negative_row_term) {
                                value = exp2_approximate(fmaf(value, scale2, negative_row_term));
                              });
    if constexpr (masked) {
      const int key = first_key_now() + at.key(), position = step * queries + at.query() + offset;
      mask(p, key - position, arguments.keys - key, arguments.causal);
    }
  }

  // dS^T = P^T (V dO^T - delta), value by value
  __device__ __forceinline__ void form_ds(Scores& ds, const Scores& p, int step, Place at) const {
    for_each_with_column_term(ds, memory.negative_deltas(step) + at.query(),
                              [](float& value, float negative_delta) { value = negative_delta; });
    add_product_of_rows<D>(ds, memory.v, at.warp_key, memory.dout(step), at.warp_query, at.lanes);
    multiply_each(ds, p);
  }

  // j - r_i: (this thread's first key) - (position of the middle of the warp's queries)
  __device__ __forceinline__ float lag_to_middle(int step, Place at) const {
    const int key = first_key_now() + at.key();
    const int middle = step * queries + at.warp_query + Shape::warp_queries / 2 + offset;
    return static_cast<float>(key - middle);
  }

  // dQ += dS K for the queries of a step, whose dS^T is in shared memory.
  __device__ __forceinline__ void add_dq(int step) const {
    DqShare<D> share = {};
    add_ds_k<Shape>(share, memory.ds(step), memory.k);
    const int head_index = sequence_now() * arguments.heads + head_now();
    add_to_workspace<D>(dq_sum, head_index * DqSums<D>::tiles(arguments.queries) + step, share);
  }

  __device__ __forceinline__ void load_keys() const {
    const int sequence = static_cast<int>(blockIdx.z), head = key_head_now();
    Tile<D>::template load<keys, Shape::threads, true>(memory.k, arguments.k.head(sequence, head),
                                                       first_key_now(), arguments.keys, arguments.head_dim);
    Tile<D>::template load<keys, Shape::threads, true>(memory.v, arguments.v.head(sequence, head),
                                                       first_key_now(), arguments.keys, arguments.head_dim);
  }

  // The terms of the block's keys, at which the accumulators begin. Absent keys are masked.
  __device__ __forceinline__ void store_key_terms() const {
    if constexpr (has_key_bias) {
      const KeyTerms terms = terms_now();
      store_row_terms<keys>(memory.row_terms, [&](int row) {
        const int key = min(first_key_now() + row, arguments.keys - 1);
        return terms.at(key, bias_now(key)) * arguments.inverse_scale;
      });
    } else {
      const float slope = slope_now() / arguments.scale;
      store_row_terms<keys>(memory.row_terms, [&](int row) { return slope * static_cast<float>(row); });
    }
  }
  // Relative to the block's first key.
  __device__ __forceinline__ KeyTerms terms_now() const {
    return {bias_now(first_key_now()), slope_now(), first_key_now()};
  }
  // The key bias at a position. With groups it may be absent, because a slope alone has no form of its own.
  __device__ __forceinline__ double bias_now(int position) const {
    return grouped && !arguments.key_bias.data ? 0
                                               : arguments.key_bias.at(sequence_now(), head_now(), position);
  }

  // Starts the copies of a step's Q and dO. `checked`: some of its queries may be absent.
  template <bool checked>
  __device__ __forceinline__ void load_queries(int step) const {
    const int sequence = sequence_now(), head = head_now();
    Tile<D>::template load<queries, Shape::threads, checked>(memory.q(step), arguments.q.head(sequence, head),
                                                             step * queries, arguments.queries,
                                                             arguments.head_dim);
    Tile<D>::template load<queries, Shape::threads, checked>(
        memory.dout(step), arguments.dout.head(sequence, head), step * queries, arguments.queries,
        arguments.head_dim);
    copy_async_commit();
  }

  // lse and delta are copied through registers, because their rows are not aligned. lse = infinity: an absent
  // query has p = 0.
  __device__ __forceinline__ QueryScalars fetch_scalars(int step) const {
    const int head_index = sequence_now() * arguments.heads + head_now();
    const int thread = thread_now(), query = step * queries + thread;
    const std::int64_t scalar = static_cast<std::int64_t>(head_index) * arguments.queries + query;
    const bool present = thread < queries && query < arguments.queries;
    return {.lse = present ? arguments.lse[scalar] : INFINITY,
            .delta = present ? arguments.delta[scalar] : 0.0f,
            .bias = 0};
  }
  __device__ __forceinline__ double fetch_bias(int step) const {
    const int thread = thread_now(), query = step * queries + thread;
    return thread < queries && query < arguments.queries ? bias_now(query + offset) : 0;
  }
  __device__ __forceinline__ void store_scalars(int step, QueryScalars scalars) const {
    const int thread = thread_now();
    if (thread >= queries) return;
    float* row_term = memory.negative_row_terms(step) + thread;
    const int position = step * queries + thread + offset;
    if constexpr (has_key_bias) {
      row_term[0] = -log2_e * (scalars.lse + terms_now().at(position, scalars.bias));
    } else {
      const float lse2 = scalars.lse * log2_e;
      row_term[0] =
          -(prior ? fmaf(slope_now() * log2_e, static_cast<float>(position - first_key_now()), lse2) : lse2);
    }
    row_term[queries] = -scalars.delta;
  }

  // Stores dU and dslope of the head.
  __device__ __forceinline__ void store_prior(const Priors& prior_sums) const {
    if constexpr (!prior) return;
    const std::int64_t head_keys =
        (static_cast<std::int64_t>(sequence_now()) * arguments.heads + head_now()) * arguments.keys;
    prior_sums.store(arguments.dkey_bias ? arguments.dkey_bias + head_keys : nullptr,
                     arguments.dslope ? arguments.dslope + head_keys : nullptr,
                     reinterpret_cast<float2*>(memory.query_scalars), first_key_now(), arguments.keys,
                     Place(thread_now()));
  }

  // Stores dK and dV, and the lanes' part of dK.
  __device__ __forceinline__ void store(KeySums<Shape>& sums) const {
    const Place own(thread_now());
    const int sequence = sequence_now(), head = key_head_now(), first_key = first_key_now();
    const std::int64_t head_keys =
        (static_cast<std::int64_t>(sequence) * arguments.key_heads + head) * arguments.keys;
    const GradientRows dk{
        .rows = arguments.dk.head(sequence, head),
        .count = arguments.keys,
        .head_dim = arguments.head_dim,
        .content_dim = arguments.content_dim,
        .scale = arguments.scale,
        .lanes = arguments.dk_lanes ? arguments.dk_lanes + head_keys * arguments.lanes : nullptr,
        .lane_count = arguments.lanes,
        .lane_scale = arguments.scale};
    const GradientRows dv{.rows = arguments.dv.head(sequence, head),
                          .count = arguments.keys,
                          .head_dim = arguments.head_dim,
                          .content_dim = arguments.head_dim,
                          .scale = 1.0f};
    store_key_gradients(sums, memory.k, dk, dv, first_key, own);
  }
};

// grid (tiles of keys, H_k, B). The first tile comes first, because most queries see it. The tiles of a head
// run at the same time and share its Q and dO in L2. Without a slope and a key bias the kind is `slope` too,
// if their gradients are wanted.
template <int D, Family family, Terms kind, bool grouped, bool deterministic>
__global__ void __launch_bounds__(BackwardKeysTraits<D, family>::threads, 1)
    attention_backward_keys_kernel(const BackwardArguments<bf16> arguments, float scale2, float* dq_sum) {
  if constexpr (compiled_for<family>) {
    using Shape = BackwardKeysTraits<D, family>;
    state_dynamic_shared<Shape::shared_bytes + (deterministic ? 0 : 2 * Shape::ds_bytes)>();
    using Block = KeysBlock<D, family, kind, grouped, deterministic>;
    KeySums<Shape> sums;
    const Block block(arguments, scale2, dq_sum);
    block.load_keys();
    if constexpr (grouped) {
#pragma unroll 1
      for (int member = 0; member < arguments.groups.size; ++member) {
        const Block of_head(arguments, scale2, dq_sum, member);
        typename Block::Priors prior_sums;
        of_head.walk(sums, prior_sums);
        of_head.store_prior(prior_sums);
        __syncthreads();  // no warp needs the tiles and the terms of this head any more
      }
      block.store(sums);
    } else {
      typename Block::Priors prior_sums;
      block.walk(sums, prior_sums);
      block.store(sums);
      block.store_prior(prior_sums);
    }
  }
}

template <int D, Family family, Terms kind, bool grouped>
void launch_keys(const BackwardArguments<bf16>& arguments, int batch, float* dq_sum, Stream stream) {
  using Shape = BackwardKeysTraits<D, family>;
  const auto start = [&](auto kernel, int shared_bytes) {
    for_each_part(batch, [&](int first, int sequences) {
      const Grid grid(divide_up(arguments.keys, Shape::keys), arguments.key_heads, sequences);
      float* const part = dq_sum ? dq_sum + DqSums<D>::elements(first, arguments) : nullptr;
      enqueue(kernel, grid, Shape::threads, shared_bytes, stream, arguments.after(first),
              arguments.scale * log2_e, part);
    });
  };
  if (!dq_sum)
    start(attention_backward_keys_kernel<D, family, kind, grouped, true>, Shape::shared_bytes);
  else if constexpr (has_dq_form<D, family>)
    start(attention_backward_keys_kernel<D, family, kind, grouped, false>,
          Shape::shared_bytes + 2 * Shape::ds_bytes);
}

template <int D, Family family>
void launch_keys(const BackwardArguments<bf16>& arguments, int batch, float* dq_sum, Stream stream) {
  const auto launch = [&]<Terms kind>(std::integral_constant<Terms, kind>) {
    if (arguments.groups.size == 1)
      launch_keys<D, family, kind, false>(arguments, batch, dq_sum, stream);
    else  // a slope alone takes the form with a key bias, which is then absent
      launch_keys<D, family, kind == Terms::slope ? Terms::key_bias : kind, true>(arguments, batch, dq_sum,
                                                                                  stream);
  };
  if (!arguments.slope && (arguments.dkey_bias || arguments.dslope) && !arguments.key_bias)
    launch(std::integral_constant<Terms, Terms::slope>{});
  else
    with_terms(arguments, launch);
}

}  // namespace

template <int D>
void attention_backward_keys_of(const BackwardArguments<bf16>& arguments, int batch, Family family,
                                float* dq_sum, Stream stream) {
  if (family == Family::large_shared)
    launch_keys<D, Family::large_shared>(arguments, batch, dq_sum, stream);
  else
    launch_keys<D, Family::small_shared>(arguments, batch, dq_sum, stream);
}

}  // namespace goat::GOAT_TARGET
