// Attention backward in fp32 arithmetic; p is recomputed from lse. One kernel owns keys and walks over the
// queries of all heads that share them (dk, dv, dkey_bias, dslope). The other owns queries and walks over the
// keys (dq). So every sum has one owner and a fixed order, but s and dp are computed twice.
#include <cmath>

#include "kernels/cuda/attention/attention_ffma.cuh"
#include "kernels/cuda/attention/attention_ffma_tile.cuh"
#include "kernels/cuda/ptx.cuh"

namespace goat::GOAT_TARGET {

namespace {

// Tile of owned rows x tile of the other rows. Shared memory holds two tiles of each kind.
// 64 x 32: 38 KiB (d_h <= 32), 61 KiB (64); 64 x 16: 89 KiB (128); 32 x 8: 82 KiB (256).
template <int D>
using BackwardShape = FfmaShape<D, D <= 128 ? 4 : 2,
                                D <= 64    ? 4
                                : D <= 128 ? 2
                                           : 1,
                                4>;
template <int D>
struct BackwardTile : BackwardShape<D> {
  using Shape = BackwardShape<D>;
  static constexpr int shared_bytes =
      4 * (2 * Shape::row_floats + 2 * Shape::column_floats + Shape::weight_floats);
  static_assert(shared_bytes <= 99 * 1024);
};

template <class Tile>
__device__ __forceinline__ void clear(Accumulators<Tile>& sums) {
#pragma unroll
  for (int i = 0; i < Tile::row_count; ++i)
#pragma unroll
    for (int k = 0; k < Tile::vectors; ++k) sums[i][k] = make_float4(0, 0, 0, 0);
}

// p and dS of one logit, from s = <q, k> and dp = <dout, v>.
struct LogitGradient {
  float p, ds;
  __device__ __forceinline__ LogitGradient(float s, float dp, float scale, float slope, float lag, float lse,
                                           float delta, bool seen) {
    const float logit = s * scale + slope * lag;
    p = seen ? expf(logit - lse) : 0.0f;
    ds = seen ? p * (dp - delta) : 0.0f;
  }
};

// The block's shared memory.
template <class Tile>
struct BackwardMemory {
  // k and v of the owned keys, or q and dout of the owned queries.
  float *rows = dynamic_shared<float>(), *row_partners = rows + Tile::row_floats;
  // q and dout, or k and v, of the rows that the block walks over.
  float *columns = row_partners + Tile::row_floats, *column_partners = columns + Tile::column_floats;
  float* weights = column_partners + Tile::column_floats;
};

// Where the gradients of one head's rows of q or k are stored. The content is stored times `scale`;
// the lanes' coordinates become zeros. The lanes' gradients times lane_scale are stored in `lanes`, if
// it is not nullptr.
template <class T>
struct GradientRows {
  HeadRows<T> rows;
  float* lanes;  // of this head: [T, lane_count], or nullptr
  int content_dim, head_dim, lane_count;
  float scale, lane_scale;
  bool aligned;

  // The four coordinates c .. c+3 of a row.
  __device__ __forceinline__ void store(int row, int c, float4 sum) const {
    float four[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int lane = c + i - content_dim;
      if (lane < 0) continue;
      if (lanes && lane < lane_count)
        lanes[static_cast<std::int64_t>(row) * lane_count + lane] = lane_scale * four[i];
      four[i] = 0;
    }
    store_four(rows.row(row) + c, make_float4(four[0], four[1], four[2], four[3]), scale, head_dim - c,
               aligned);
  }
};

// The prior's sums for a thread's keys: dU_j = sum_i dS_ij and dslope_j = sum_i dS_ij (j - i').
template <class Tile>
struct KeyPrior {
  float bias[Tile::row_count] = {}, slope[Tile::row_count] = {};
};

// One head of q of one sequence.
template <class T>
struct QueryHead {
  HeadRows<const T> q, dout;
  const float *lse, *delta;
  float slope;

  __device__ __forceinline__ QueryHead(const BackwardArguments<T>& arguments, int sequence, int head)
      : q(arguments.q.head(sequence, head)),
        dout(arguments.dout.head(sequence, head)),
        slope(arguments.slope ? arguments.slope[head] : 0.0f) {
    const std::int64_t rows =
        (static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.queries;
    lse = arguments.lse + rows;
    delta = arguments.delta + rows;
  }
};

// S and dP become P and dS, and the prior's sums grow by dS. first_key: this thread's. first_query: of the
// tile.
template <class Tile, class T>
__device__ __forceinline__ void form_p_ds(Scores<Tile>& p, Scores<Tile>& ds, KeyPrior<Tile>& prior,
                                          const BackwardArguments<T>& arguments, const QueryHead<T>& head,
                                          const BlockBias& key_bias, int first_key, int first_query) {
  const int lead = arguments.keys - arguments.queries;
  key_bias.add_to_rows<Tile>(p, first_key, arguments.keys);
#pragma unroll
  for (int j = 0; j < Tile::column_count; ++j) {
    const int query = first_query + thread_column() + 8 * j;
    const bool exists = query < arguments.queries;
    float query_lse = exists ? head.lse[query] : 0.0f;
    const float query_delta = exists ? head.delta[query] : 0.0f;
    if (key_bias.keys && exists) query_lse += key_bias.at(query + lead);
#pragma unroll
    for (int i = 0; i < Tile::row_count; ++i) {
      const int lag = first_key + 4 * i - (query + lead);
      const LogitGradient gradient(p[i][j], ds[i][j], arguments.scale, head.slope, static_cast<float>(lag),
                                   query_lse, query_delta, exists && (!arguments.causal || lag <= 0));
      p[i][j] = gradient.p;
      ds[i][j] = gradient.ds;
      prior.bias[i] += gradient.ds;
      prior.slope[i] += gradient.ds * static_cast<float>(lag);
    }
  }
}

// Stores dkey_bias and dslope of a thread's keys.
template <class Tile, class T>
__device__ __forceinline__ void store_prior(const BackwardArguments<T>& arguments,
                                            const KeyPrior<Tile>& prior, int sequence, int head,
                                            int first_key) {
  const std::int64_t head_keys =
      (static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.keys;
#pragma unroll
  for (int i = 0; i < Tile::row_count; ++i) {
    const int key = first_key + 4 * i;
    const float bias_total = row_sum(prior.bias[i]), slope_total = row_sum(prior.slope[i]);
    if (key >= arguments.keys || thread_column() > 0) continue;
    if (arguments.dkey_bias) arguments.dkey_bias[head_keys + key] = bias_total;
    if (arguments.dslope) arguments.dslope[head_keys + key] = slope_total;
  }
}

// Stores dK and dV of a thread's keys.
template <class Tile, class T>
__device__ __forceinline__ void store_keys(const BackwardArguments<T>& arguments,
                                           const Accumulators<Tile>& dk, const Accumulators<Tile>& dv,
                                           int sequence, int key_head, int first_key, bool aligned) {
  const std::int64_t head_keys = static_cast<std::int64_t>(blockIdx.x) * arguments.keys;
  const GradientRows<T> dk_rows{
      .rows = arguments.dk.head(sequence, key_head),
      .lanes = arguments.dk_lanes ? arguments.dk_lanes + head_keys * arguments.lanes : nullptr,
      .content_dim = arguments.content_dim,
      .head_dim = arguments.head_dim,
      .lane_count = arguments.lanes,
      .scale = arguments.scale,
      .lane_scale = arguments.scale,
      .aligned = aligned};
  const HeadRows<T> dv_rows = arguments.dv.head(sequence, key_head);
#pragma unroll
  for (int i = 0; i < Tile::row_count; ++i) {
    const int key = first_key + 4 * i;
    if (key >= arguments.keys) continue;
#pragma unroll
    for (int k = 0; k < Tile::vectors; ++k) {
      const int c = 4 * thread_column() + 32 * k;
      dk_rows.store(key, c, dk[i][k]);
      store_four(dv_rows.row(key) + c, dv[i][k], 1.0f, arguments.head_dim - c, aligned);
    }
  }
}

// Adds the terms of one head of q to dK and dV of the block's keys, and stores its dkey_bias and dslope.
template <class Tile, class T>
__device__ __forceinline__ void walk_queries(Accumulators<Tile>& dk, Accumulators<Tile>& dv,
                                             const BackwardMemory<Tile>& memory,
                                             const BackwardArguments<T>& arguments, int sequence,
                                             int head_index, int first_key, bool aligned) {
  const QueryHead<T> head(arguments, sequence, head_index);
  const BlockBias key_bias(arguments, sequence, head_index, first_key);
  const int warp_key = first_key + Tile::warp_row(), thread_key = warp_key + thread_row(),
            lead = arguments.keys - arguments.queries;  // position of a query = its row + lead
  KeyPrior<Tile> prior;
  const int start = arguments.causal ? max(0, first_key - lead) / Tile::columns * Tile::columns : 0;
#pragma unroll 1
  for (int first_query = start; first_query < arguments.queries; first_query += Tile::columns) {
    __syncthreads();
    load_rows<Tile, Tile::columns>(memory.columns, head.q, first_query, arguments.queries, arguments.head_dim,
                                   aligned);
    load_rows<Tile, Tile::columns>(memory.column_partners, head.dout, first_query, arguments.queries,
                                   arguments.head_dim, aligned);
    __syncthreads();
    // The condition is the same for all lanes of a warp.
    if (warp_key >= arguments.keys || (arguments.causal && warp_key >= first_query + Tile::columns + lead))
      continue;
    Scores<Tile> p, ds;  // at first S = K Q^T and dP = V dO^T
    multiply_rows<Tile>(p, memory.rows, memory.columns, arguments.head_dim);
    multiply_rows<Tile>(ds, memory.row_partners, memory.column_partners, arguments.head_dim);
    form_p_ds<Tile>(p, ds, prior, arguments, head, key_bias, thread_key, first_query);
    store_weights<Tile>(memory.weights, p);
    __syncwarp();
    multiply_weights<Tile>(dv, memory.weights, memory.column_partners);  // dV += P dO
    __syncwarp();
    store_weights<Tile>(memory.weights, ds);
    __syncwarp();
    multiply_weights<Tile>(dk, memory.weights, memory.columns);  // dK += dS Q
  }
  store_prior<Tile>(arguments, prior, sequence, head_index, thread_key);
}

// The launch bounds state one block. Otherwise ptxas uses fewer registers than there are and spills (sm_120).
// Registers and memory are often enough for two blocks.
// grid (B H_k, blocks of keys). Block indices run up from first_block, because most queries
// see the first blocks. A block takes the heads of its group one after the other.
template <class T, int D>
__global__ void __launch_bounds__(BackwardTile<D>::threads, 1)
    keys_kernel(const BackwardArguments<T> arguments, int first_block, bool aligned) {
  using Tile = BackwardTile<D>;
  state_dynamic_shared<Tile::shared_bytes>();
  const BackwardMemory<Tile> memory;
  const int sequence = blockIdx.x / arguments.key_heads, key_head = blockIdx.x % arguments.key_heads;
  const int first_key = (first_block + static_cast<int>(blockIdx.y)) * Tile::rows;
  load_rows<Tile, Tile::rows>(memory.rows, arguments.k.head(sequence, key_head), first_key, arguments.keys,
                              arguments.head_dim, aligned);
  load_rows<Tile, Tile::rows>(memory.row_partners, arguments.v.head(sequence, key_head), first_key,
                              arguments.keys, arguments.head_dim, aligned);
  Accumulators<Tile> dk, dv;
  clear<Tile>(dk);
  clear<Tile>(dv);
  const int group = arguments.groups.size;
#pragma unroll 1
  for (int head = key_head * group; head < (key_head + 1) * group; ++head)
    walk_queries<Tile>(dk, dv, memory, arguments, sequence, head, first_key, aligned);
  store_keys<Tile>(arguments, dk, dv, sequence, key_head, first_key + Tile::warp_row() + thread_row(),
                   aligned);
}

// The queries of a thread: lse of logits with the key bias, and delta.
template <class Tile>
struct QueryRows {
  float lse[Tile::row_count], delta[Tile::row_count];

  template <class T>
  __device__ __forceinline__ QueryRows(const BackwardArguments<T>& arguments, const QueryHead<T>& head,
                                       const BlockBias& key_bias, int first_query) {
#pragma unroll
    for (int i = 0; i < Tile::row_count; ++i) {
      const int query = first_query + 4 * i;
      const bool exists = query < arguments.queries;
      lse[i] = exists ? head.lse[query] : INFINITY;  // lse = infinity: p = 0
      delta[i] = exists ? head.delta[query] : 0.0f;
      if (key_bias.keys && exists) lse[i] += key_bias.at(query + arguments.keys - arguments.queries);
    }
  }

  // dP becomes dS. first_key, first_position: the thread's first column and the position of its first row.
  template <class T>
  __device__ __forceinline__ void form_ds(const Scores<Tile>& s, Scores<Tile>& ds,
                                          const BackwardArguments<T>& arguments, float slope, int first_key,
                                          int first_position) const {
#pragma unroll
    for (int i = 0; i < Tile::row_count; ++i)
#pragma unroll
      for (int j = 0; j < Tile::column_count; ++j) {
        const int key = first_key + 8 * j, lag = key - (first_position + 4 * i);
        ds[i][j] = LogitGradient(s[i][j], ds[i][j], arguments.scale, slope, static_cast<float>(lag), lse[i],
                                 delta[i], key < arguments.keys && (!arguments.causal || lag <= 0))
                       .ds;
      }
  }
};

// Stores dQ of a thread's queries.
template <class Tile, class T>
__device__ __forceinline__ void store_queries(const BackwardArguments<T>& arguments,
                                              const Accumulators<Tile>& dq, int sequence, int head,
                                              int first_query, bool aligned) {
  const std::int64_t head_queries = static_cast<std::int64_t>(blockIdx.x) * arguments.queries;
  const GradientRows<T> dq_rows{
      .rows = arguments.dq.head(sequence, head),
      .lanes = arguments.dq_lanes ? arguments.dq_lanes + head_queries * arguments.lanes : nullptr,
      .content_dim = arguments.content_dim,
      .head_dim = arguments.head_dim,
      .lane_count = arguments.lanes,
      .scale = arguments.scale,
      .lane_scale = 1.0f,
      .aligned = aligned};
#pragma unroll
  for (int i = 0; i < Tile::row_count; ++i)
#pragma unroll
    for (int k = 0; k < Tile::vectors; ++k)
      if (first_query + 4 * i < arguments.queries)
        dq_rows.store(first_query + 4 * i, 4 * thread_column() + 32 * k, dq[i][k]);
}

// grid (B H, blocks of queries). Block indices run down from last_block, because the last
// blocks see most keys.
template <class T, int D>
__global__ void __launch_bounds__(BackwardTile<D>::threads, 1)
    queries_kernel(const BackwardArguments<T> arguments, int last_block, bool aligned) {
  using Tile = BackwardTile<D>;
  state_dynamic_shared<Tile::shared_bytes>();
  const BackwardMemory<Tile> memory;
  const int sequence = blockIdx.x / arguments.heads, head_index = blockIdx.x % arguments.heads,
            key_head = arguments.key_head(head_index);
  const int first_query = (last_block - static_cast<int>(blockIdx.y)) * Tile::rows,
            warp_query = first_query + Tile::warp_row(), thread_query = warp_query + thread_row(),
            lead = arguments.keys - arguments.queries;
  const QueryHead<T> head(arguments, sequence, head_index);
  const BlockBias key_bias(arguments, sequence, head_index, first_query + lead);
  const HeadRows<const T> k = arguments.k.head(sequence, key_head), v = arguments.v.head(sequence, key_head);
  load_rows<Tile, Tile::rows>(memory.rows, head.q, first_query, arguments.queries, arguments.head_dim,
                              aligned);
  load_rows<Tile, Tile::rows>(memory.row_partners, head.dout, first_query, arguments.queries,
                              arguments.head_dim, aligned);
  const QueryRows<Tile> rows(arguments, head, key_bias, thread_query);
  Accumulators<Tile> dq;
  clear<Tile>(dq);
  const int seen = arguments.causal ? min(first_query + Tile::rows + lead, arguments.keys) : arguments.keys;
#pragma unroll 1
  for (int first_key = 0; first_key < seen; first_key += Tile::columns) {
    __syncthreads();
    load_rows<Tile, Tile::columns>(memory.columns, k, first_key, arguments.keys, arguments.head_dim, aligned);
    load_rows<Tile, Tile::columns>(memory.column_partners, v, first_key, arguments.keys, arguments.head_dim,
                                   aligned);
    __syncthreads();
    if (warp_query >= arguments.queries ||
        (arguments.causal && first_key >= warp_query + Tile::rows_of_warp + lead))
      continue;
    Scores<Tile> s, ds;  // S = Q K^T; ds is dP = dO V^T at first
    multiply_rows<Tile>(s, memory.rows, memory.columns, arguments.head_dim);
    multiply_rows<Tile>(ds, memory.row_partners, memory.column_partners, arguments.head_dim);
    key_bias.add_to_columns<Tile>(s, first_key + thread_column(), arguments.keys);
    rows.form_ds(s, ds, arguments, head.slope, first_key + thread_column(), thread_query + lead);
    store_weights<Tile>(memory.weights, ds);
    __syncwarp();
    multiply_weights<Tile>(dq, memory.weights, memory.columns);  // dQ += dS K
  }
  store_queries<Tile>(arguments, dq, sequence, head_index, thread_query, aligned);
}

}  // namespace

// Writes dq, dk, dv and the optional gradients once. Reads q and dout once for each block of keys, and k and
// v once for each block of queries, mostly from L2. delta must be computed before.
template <class T>
void attention_backward_ffma(const BackwardArguments<T>& arguments, int batch, Stream stream) {
  with_head_dim(arguments.head_dim, [&]<int D>(std::integral_constant<int, D>) {
    using Tile = BackwardTile<D>;
    const std::int64_t heads = std::int64_t{batch} * arguments.heads,
                       key_heads = std::int64_t{batch} * arguments.key_heads;
    const auto run = [&](auto kernel, const Grid& grid, int block) {
      enqueue(kernel, grid, Tile::threads, Tile::shared_bytes, stream, arguments, block, arguments.aligned());
    };
    for_each_part(divide_up(arguments.keys, Tile::rows),
                  [&](int first, int count) { run(keys_kernel<T, D>, Grid(key_heads, count), first); });
    if (heads == 0) return;
    const auto blocks = static_cast<int>(divide_up(arguments.queries, Tile::rows));
    for_each_part(blocks, [&](int first, int count) {
      run(queries_kernel<T, D>, Grid(heads, count), blocks - 1 - first);
    });
  });
}
template void attention_backward_ffma(const BackwardArguments<float>&, int, Stream);
template void attention_backward_ffma(const BackwardArguments<bf16>&, int, Stream);

}  // namespace goat::GOAT_TARGET
