// Attention forward in fp32 arithmetic: tiles of queries against tiles of keys with an online softmax
// (Milakov & Gimelshein 2018; Dao et al. 2022).
#include <cmath>

#include "kernels/cuda/attention/attention_ffma.cuh"
#include "kernels/cuda/attention/attention_ffma_tile.cuh"
#include "kernels/cuda/ptx.cuh"

namespace goat::GOAT_TARGET {

namespace {

// 64 queries x 32 keys, 16 queries a warp. K and V use one buffer in turn.
// Shared memory: 23 KiB (d_h <= 32), 36 KiB (64), 60 KiB (128), 70 KiB (256; with half of the warps).
template <int D>
struct ForwardTile : FfmaShape<D, 4, 4, D <= 128 ? 4 : 2> {
  using Shape = FfmaShape<D, 4, 4, D <= 128 ? 4 : 2>;
  static constexpr int shared_bytes = 4 * (Shape::row_floats + Shape::column_floats + Shape::weight_floats);
  static constexpr int blocks = D <= 32 ? 3 : D <= 64 ? 2 : 1;  // blocks that fit into 100 KiB
  static_assert(shared_bytes <= 99 * 1024);
};

// The state of a thread's rows. `out` is not yet divided by the sum. `sum` covers the thread's own columns.
template <class Tile>
struct SoftmaxRows {
  Accumulators<Tile> out;
  float maximum[Tile::row_count], sum[Tile::row_count];

  __device__ __forceinline__ SoftmaxRows() {
#pragma unroll
    for (int i = 0; i < Tile::row_count; ++i) {
      maximum[i] = -INFINITY;
      sum[i] = 0;
#pragma unroll
      for (int k = 0; k < Tile::vectors; ++k) out[i][k] = make_float4(0, 0, 0, 0);
    }
  }

  // scores <- p = exp(z - maximum), and 0 for hidden keys. Row i sees key j if first_key + 8j <= last, where
  // last = last_key, or min(position + 4i, last_key) if causal. `first_key` is the thread's first key,
  // `position` the position i' of its first row. Rescales the earlier sums to the new maximum.
  __device__ __forceinline__ void take(Scores<Tile>& scores, float scale, float slope, int first_key,
                                       int position, int last_key, bool causal) {
#pragma unroll
    for (int i = 0; i < Tile::row_count; ++i) {
      const int place = position + 4 * i, last = causal ? min(place, last_key) : last_key;
      float largest = maximum[i];
#pragma unroll
      for (int j = 0; j < Tile::column_count; ++j) {
        const int key = first_key + 8 * j;
        const float logit = scores[i][j] * scale + slope * static_cast<float>(key - place);
        scores[i][j] = key <= last ? logit : -INFINITY;
        largest = fmaxf(largest, scores[i][j]);
      }
      largest = row_max(largest);
      const float reference = largest == -INFINITY ? 0.0f : largest;  // the row has seen no key yet
      const float shrink = expf(maximum[i] - reference);
      maximum[i] = largest;
      float added = 0;
#pragma unroll
      for (int j = 0; j < Tile::column_count; ++j) {
        scores[i][j] = expf(scores[i][j] - reference);
        added += scores[i][j];
      }
      sum[i] = sum[i] * shrink + added;
#pragma unroll
      for (int k = 0; k < Tile::vectors; ++k) {
        out[i][k].x *= shrink;
        out[i][k].y *= shrink;
        out[i][k].z *= shrink;
        out[i][k].w *= shrink;
      }
    }
  }

  // `first_row` is the thread's first query.
  template <class T>
  __device__ __forceinline__ void store(const ForwardArguments<T>& arguments, const BlockBias& key_bias,
                                        int sequence, int head, int first_row, bool aligned) const {
    const HeadRows<T> rows = arguments.out.head(sequence, head);
    float* const lse =
        arguments.lse + (static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.queries;
#pragma unroll
    for (int i = 0; i < Tile::row_count; ++i) {
      const int row = first_row + 4 * i;
      const float total = row_sum(sum[i]);
      if (row >= arguments.queries) continue;
      if (thread_column() == 0) {
        const float biased = maximum[i] + logf(total);
        lse[row] = key_bias.keys ? biased - key_bias.at(row + arguments.keys - arguments.queries) : biased;
      }
#pragma unroll
      for (int k = 0; k < Tile::vectors; ++k) {
        const int c = 4 * thread_column() + 32 * k;
        const float4 mean =
            make_float4(out[i][k].x / total, out[i][k].y / total, out[i][k].z / total, out[i][k].w / total);
        store_four(rows.row(row) + c, mean, 1.0f, arguments.head_dim - c, aligned);
      }
    }
  }
};

// grid (B H, blocks of queries). Block indices run down from last_block, because the last
// blocks see most keys.
template <class T, int D>
__global__ void __launch_bounds__(ForwardTile<D>::threads, ForwardTile<D>::blocks)
    forward_kernel(const ForwardArguments<T> arguments, int last_block, bool aligned) {
  using Tile = ForwardTile<D>;
  state_dynamic_shared<Tile::shared_bytes>();
  float* const q_tile = dynamic_shared<float>();
  float* const kv_tile = q_tile + Tile::row_floats;
  float* const weights = kv_tile + Tile::column_floats;

  const int sequence = blockIdx.x / arguments.heads, head = blockIdx.x % arguments.heads;
  const int first_query = (last_block - static_cast<int>(blockIdx.y)) * Tile::rows;
  const int lead = arguments.keys - arguments.queries;  // position of a query = its row + lead
  const int seen = arguments.causal ? min(first_query + lead + Tile::rows, arguments.keys) : arguments.keys;
  const int warp_query = first_query + Tile::warp_row();  // the warp's first query
  const float slope = arguments.slope ? arguments.slope[head] : 0.0f;
  const int key_head = arguments.key_head(head);
  const HeadRows<const T> k = arguments.k.head(sequence, key_head), v = arguments.v.head(sequence, key_head);
  const BlockBias key_bias(arguments, sequence, head, first_query + lead);

  SoftmaxRows<Tile> rows;
  load_rows<Tile, Tile::rows>(q_tile, arguments.q.head(sequence, head), first_query, arguments.queries,
                              arguments.head_dim, aligned);
#pragma unroll 1
  for (int first_key = (seen - 1) / Tile::columns * Tile::columns; first_key >= 0;
       first_key -= Tile::columns) {
    const bool sees = warp_query < arguments.queries &&
                      (!arguments.causal || first_key < warp_query + Tile::rows_of_warp + lead);
    __syncthreads();  // no warp reads V any more
    load_rows<Tile, Tile::columns>(kv_tile, k, first_key, arguments.keys, arguments.head_dim, aligned);
    __syncthreads();
    if (sees) {
      Scores<Tile> scores;
      multiply_rows<Tile>(scores, q_tile, kv_tile, arguments.head_dim);
      key_bias.add_to_columns<Tile>(scores, first_key + thread_column(), arguments.keys);
      rows.take(scores, arguments.scale, slope, first_key + thread_column(), warp_query + thread_row() + lead,
                arguments.keys - 1, arguments.causal);
      store_weights<Tile>(weights, scores);
    }
    __syncthreads();
    load_rows<Tile, Tile::columns>(kv_tile, v, first_key, arguments.keys, arguments.head_dim, aligned);
    __syncthreads();
    if (sees) multiply_weights<Tile>(rows.out, weights, kv_tile);
  }
  rows.store(arguments, key_bias, sequence, head, warp_query + thread_row(), aligned);
}

}  // namespace

// Reads q and writes out once. Reads k and v once for each 64 queries, mostly from L2.
template <class T>
void attention_forward_ffma(const ForwardArguments<T>& arguments, int batch, Stream stream) {
  with_head_dim(arguments.head_dim, [&]<int D>(std::integral_constant<int, D>) {
    using Tile = ForwardTile<D>;
    const std::int64_t heads = std::int64_t{batch} * arguments.heads,
                       blocks = divide_up(arguments.queries, Tile::rows);
    for_each_part(blocks, [&](int first, int count) {
      enqueue(forward_kernel<T, D>, Grid(heads, count), Tile::threads, Tile::shared_bytes, stream, arguments,
              static_cast<int>(blocks) - 1 - first, arguments.aligned());
    });
  });
}
template void attention_forward_ffma(const ForwardArguments<float>&, int, Stream);
template void attention_forward_ffma(const ForwardArguments<bf16>&, int, Stream);

}  // namespace goat::GOAT_TARGET
