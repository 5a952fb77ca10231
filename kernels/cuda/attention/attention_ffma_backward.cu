// Attention backward in fp32 arithmetic; p is recomputed from lse. One kernel owns keys and walks over the
// queries (dk, dv, dkey_bias, dslope). The other owns queries and walks over the keys (dq). So every sum has
// one owner and a fixed order, but s and dp are computed twice.
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

// p and S of one logit, from s = <q, k> and dp = <dout, v>.
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
  T* rows;
  float* lanes;  // of this head: [T, lane_count], or nullptr
  std::int64_t stride;
  int content_dim, head_dim, lane_count;
  float scale, lane_scale;
  bool aligned;

  __device__ __forceinline__ GradientRows(const BackwardArguments<T>& arguments, const Heads<T>& heads,
                                          float* lane_memory, int length, float scale_of_lanes, int sequence,
                                          int head, bool is_aligned)
      : rows(heads.rows(sequence, head)),
        lanes(lane_memory ? lane_memory + (static_cast<std::int64_t>(sequence) * arguments.heads + head) *
                                              length * arguments.lanes
                          : nullptr),
        stride(heads.row_stride),
        content_dim(arguments.content_dim),
        head_dim(arguments.head_dim),
        lane_count(arguments.lanes),
        scale(arguments.scale),
        lane_scale(scale_of_lanes),
        aligned(is_aligned) {}

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
    store_four(rows + row * stride + c, make_float4(four[0], four[1], four[2], four[3]), scale, head_dim - c,
               aligned);
  }
};

// The launch bounds state one block. Otherwise ptxas uses fewer registers than there are and spills (sm_120).
// Registers and memory are often enough for two blocks.
// grid (B H, blocks of keys). Block indices run up from first_block, because most queries
// see the first blocks.
template <class T, int D>
__global__ void __launch_bounds__(BackwardTile<D>::threads, 1)
    keys_kernel(const BackwardArguments<T> arguments, int first_block, bool aligned) {
  using Tile = BackwardTile<D>;
  state_dynamic_shared<Tile::shared_bytes>();
  const BackwardMemory<Tile> memory;
  const int sequence = blockIdx.x / arguments.heads, head = blockIdx.x % arguments.heads;
  const int first_key = (first_block + static_cast<int>(blockIdx.y)) * Tile::rows,
            warp_key = first_key + Tile::warp_row(), thread_key = warp_key + thread_row();
  const int lead = arguments.keys - arguments.queries;  // position of a query = its row + lead
  const float slope = arguments.slope ? arguments.slope[head] : 0.0f;
  const std::int64_t query_rows = static_cast<std::int64_t>(blockIdx.x) * arguments.queries;
  const float *lse = arguments.lse + query_rows, *delta = arguments.delta + query_rows;
  const T *q = arguments.q.rows(sequence, head), *dout = arguments.dout.rows(sequence, head);
  load_rows<Tile, Tile::rows>(memory.rows, arguments.k.rows(sequence, head), arguments.k.row_stride,
                              first_key, arguments.keys, arguments.head_dim, aligned);
  load_rows<Tile, Tile::rows>(memory.row_partners, arguments.v.rows(sequence, head), arguments.v.row_stride,
                              first_key, arguments.keys, arguments.head_dim, aligned);

  Accumulators<Tile> dk, dv;
  clear<Tile>(dk);
  clear<Tile>(dv);
  float bias_sum[Tile::row_count] = {}, slope_sum[Tile::row_count] = {};
  const int start = arguments.causal ? max(0, first_key - lead) / Tile::columns * Tile::columns : 0;
#pragma unroll 1
  for (int first_query = start; first_query < arguments.queries; first_query += Tile::columns) {
    __syncthreads();
    load_rows<Tile, Tile::columns>(memory.columns, q, arguments.q.row_stride, first_query, arguments.queries,
                                   arguments.head_dim, aligned);
    load_rows<Tile, Tile::columns>(memory.column_partners, dout, arguments.dout.row_stride, first_query,
                                   arguments.queries, arguments.head_dim, aligned);
    __syncthreads();
    // The condition is the same for all lanes of a warp.
    if (warp_key >= arguments.keys || (arguments.causal && warp_key >= first_query + Tile::columns + lead))
      continue;
    Scores<Tile> p, ds;  // at first s and dp
    multiply_rows<Tile>(p, memory.rows, memory.columns, arguments.head_dim);
    multiply_rows<Tile>(ds, memory.row_partners, memory.column_partners, arguments.head_dim);
#pragma unroll
    for (int j = 0; j < Tile::column_count; ++j) {
      const int query = first_query + thread_column() + 8 * j;
      const bool exists = query < arguments.queries;
      const float query_lse = exists ? lse[query] : 0.0f, query_delta = exists ? delta[query] : 0.0f;
#pragma unroll
      for (int i = 0; i < Tile::row_count; ++i) {
        const int lag = thread_key + 4 * i - (query + lead);
        const LogitGradient gradient(p[i][j], ds[i][j], arguments.scale, slope, static_cast<float>(lag),
                                     query_lse, query_delta, exists && (!arguments.causal || lag <= 0));
        p[i][j] = gradient.p;
        ds[i][j] = gradient.ds;
        bias_sum[i] += gradient.ds;
        slope_sum[i] += gradient.ds * static_cast<float>(lag);
      }
    }
    store_weights<Tile>(memory.weights, p);
    __syncwarp();
    multiply_weights<Tile>(dv, memory.weights, memory.column_partners);
    __syncwarp();
    store_weights<Tile>(memory.weights, ds);
    __syncwarp();
    multiply_weights<Tile>(dk, memory.weights, memory.columns);
  }

  const GradientRows<T> dk_rows(arguments, arguments.dk, arguments.dk_lanes, arguments.keys, arguments.scale,
                                sequence, head, aligned);
  T* const dv_rows = arguments.dv.rows(sequence, head);
  const std::int64_t key_rows = static_cast<std::int64_t>(blockIdx.x) * arguments.keys;
#pragma unroll
  for (int i = 0; i < Tile::row_count; ++i) {
    const int key = thread_key + 4 * i;
    const float bias_total = row_sum(bias_sum[i]), slope_total = row_sum(slope_sum[i]);
    if (key >= arguments.keys) continue;
    if (thread_column() == 0) {
      if (arguments.dkey_bias) arguments.dkey_bias[key_rows + key] = bias_total;
      if (arguments.dslope) arguments.dslope[key_rows + key] = slope_total;
    }
#pragma unroll
    for (int k = 0; k < Tile::vectors; ++k) {
      const int c = 4 * thread_column() + 32 * k;
      dk_rows.store(key, c, dk[i][k]);
      store_four(dv_rows + key * arguments.dv.row_stride + c, dv[i][k], 1.0f, arguments.head_dim - c,
                 aligned);
    }
  }
}

// grid (B H, blocks of queries). Block indices run down from last_block, because the last
// blocks see most keys.
template <class T, int D>
__global__ void __launch_bounds__(BackwardTile<D>::threads, 1)
    queries_kernel(const BackwardArguments<T> arguments, int last_block, bool aligned) {
  using Tile = BackwardTile<D>;
  state_dynamic_shared<Tile::shared_bytes>();
  const BackwardMemory<Tile> memory;
  const int sequence = blockIdx.x / arguments.heads, head = blockIdx.x % arguments.heads;
  const int first_query = (last_block - static_cast<int>(blockIdx.y)) * Tile::rows,
            warp_query = first_query + Tile::warp_row();
  const int thread_query = warp_query + thread_row(), lead = arguments.keys - arguments.queries;
  const float slope = arguments.slope ? arguments.slope[head] : 0.0f;
  const T *k = arguments.k.rows(sequence, head), *v = arguments.v.rows(sequence, head);
  load_rows<Tile, Tile::rows>(memory.rows, arguments.q.rows(sequence, head), arguments.q.row_stride,
                              first_query, arguments.queries, arguments.head_dim, aligned);
  load_rows<Tile, Tile::rows>(memory.row_partners, arguments.dout.rows(sequence, head),
                              arguments.dout.row_stride, first_query, arguments.queries, arguments.head_dim,
                              aligned);

  float lse[Tile::row_count], delta[Tile::row_count];
#pragma unroll
  for (int i = 0; i < Tile::row_count; ++i) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * arguments.queries + thread_query + 4 * i;
    const bool exists = thread_query + 4 * i < arguments.queries;
    lse[i] = exists ? arguments.lse[row] : INFINITY;  // lse = infinity: p = 0
    delta[i] = exists ? arguments.delta[row] : 0.0f;
  }
  Accumulators<Tile> dq;
  clear<Tile>(dq);
  const int seen = arguments.causal ? min(first_query + Tile::rows + lead, arguments.keys) : arguments.keys;
#pragma unroll 1
  for (int first_key = 0; first_key < seen; first_key += Tile::columns) {
    __syncthreads();
    load_rows<Tile, Tile::columns>(memory.columns, k, arguments.k.row_stride, first_key, arguments.keys,
                                   arguments.head_dim, aligned);
    load_rows<Tile, Tile::columns>(memory.column_partners, v, arguments.v.row_stride, first_key,
                                   arguments.keys, arguments.head_dim, aligned);
    __syncthreads();
    if (warp_query >= arguments.queries ||
        (arguments.causal && first_key >= warp_query + Tile::rows_of_warp + lead))
      continue;
    Scores<Tile> s, ds;  // ds is dp at first
    multiply_rows<Tile>(s, memory.rows, memory.columns, arguments.head_dim);
    multiply_rows<Tile>(ds, memory.row_partners, memory.column_partners, arguments.head_dim);
#pragma unroll
    for (int i = 0; i < Tile::row_count; ++i)
#pragma unroll
      for (int j = 0; j < Tile::column_count; ++j) {
        const int key = first_key + thread_column() + 8 * j, lag = key - (thread_query + 4 * i + lead);
        ds[i][j] = LogitGradient(s[i][j], ds[i][j], arguments.scale, slope, static_cast<float>(lag), lse[i],
                                 delta[i], key < arguments.keys && (!arguments.causal || lag <= 0))
                       .ds;
      }
    store_weights<Tile>(memory.weights, ds);
    __syncwarp();
    multiply_weights<Tile>(dq, memory.weights, memory.columns);
  }

  const GradientRows<T> dq_rows(arguments, arguments.dq, arguments.dq_lanes, arguments.queries, 1.0f,
                                sequence, head, aligned);
#pragma unroll
  for (int i = 0; i < Tile::row_count; ++i)
#pragma unroll
    for (int k_index = 0; k_index < Tile::vectors; ++k_index)
      if (thread_query + 4 * i < arguments.queries)
        dq_rows.store(thread_query + 4 * i, 4 * thread_column() + 32 * k_index, dq[i][k_index]);
}

}  // namespace

// Writes dq, dk, dv and the optional gradients once. Reads q and dout once for each block of keys, and k and
// v once for each block of queries, mostly from L2. delta must be computed before.
template <class T>
void attention_backward_ffma(const BackwardArguments<T>& arguments, int batch, Stream stream) {
  with_head_dim(arguments.head_dim, [&]<int D>(std::integral_constant<int, D>) {
    using Tile = BackwardTile<D>;
    const std::int64_t heads = std::int64_t{batch} * arguments.heads;
    const auto run = [&](auto kernel, const Grid& grid, int block) {
      enqueue(kernel, grid, Tile::threads, Tile::shared_bytes, stream, arguments, block, arguments.aligned());
    };
    for_each_part(divide_up(arguments.keys, Tile::rows),
                  [&](int first, int count) { run(keys_kernel<T, D>, Grid(heads, count), first); });
    const auto blocks = static_cast<int>(divide_up(arguments.queries, Tile::rows));
    for_each_part(blocks, [&](int first, int count) {
      run(queries_kernel<T, D>, Grid(heads, count), blocks - 1 - first);
    });
  });
}
template void attention_backward_ffma(const BackwardArguments<float>&, int, Stream);
template void attention_backward_ffma(const BackwardArguments<bf16>&, int, Stream);

}  // namespace goat::GOAT_TARGET
