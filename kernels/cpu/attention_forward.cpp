// Attention forward on the CPU: tiles of queries times tiles of keys with an online softmax (Milakov &
// Gimelshein 2018; Dao et al. 2022).
//
// A thread owns one tile of queries of one head. Scores are stored transposed, z^T[key, query], so that
// queries lie along the vector lanes. Then row maxima and sums need no horizontal reduction, and K and V are
// used in their memory layout. Only q is transposed, once per tile.
#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/attention_decode.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/cpu_device.h"

namespace goat {

namespace {
using namespace attention;

// The state of one query tile in a thread. D = d_h rounded up to 16.
struct ForwardTile {
  float* q;         // [d_h, query_tile], transposed
  float* k;         // [key_tile, D]
  float* v;         // [key_tile, D]
  float* p;         // [key_tile, query_tile], z^T, then p^T
  float* out;       // [query_tile, D], not yet divided by sum
  float* maximum;   // [query_tile], maximum of the logits so far
  float* sum;       // [query_tile], sum of exp(z - maximum)
  float* shrink;    // [query_tile], exp(old maximum - new maximum)
  float* position;  // [query_tile], i' relative to the tile's first key
  float* bias;      // [key_tile], what the key bias adds to the logits
  Index head_dim;
  Index width;  // D

  static Index floats(Index head_dim) {
    const Index width = round_up(head_dim, block_columns);
    return head_dim * query_tile + 2 * key_tile * width + key_tile * query_tile + query_tile * width +
           4 * query_tile + key_tile;
  }
  ForwardTile(float* memory, Index head_dimension)
      : head_dim(head_dimension), width(round_up(head_dimension, block_columns)) {
    const auto take = [&memory](Index count) { return std::exchange(memory, memory + count); };
    q = take(head_dim * query_tile);
    k = take(key_tile * width);
    v = take(key_tile * width);
    p = take(key_tile * query_tile);
    out = take(query_tile * width);
    maximum = take(query_tile);
    sum = take(query_tile);
    shrink = take(query_tile);
    position = take(query_tile);
    bias = take(key_tile);
  }
};

// The first query lane, rounded down to a whole vector, that the product p v reads at `key`. It belongs to
// the first block of rows with a query that sees the key.
SIMD_INLINE Index first_lane(const TileEdge& edge, Index key) {
  return edge.first_query(key) / block_rows * block_rows / block_columns * block_columns;
}

// p^T <- logits, or -inf where the causal mask hides the key. Updates maximum and shrink.
template <bool biased>
SIMD_INLINE void logits(const ForwardTile& tile, const TileEdge& edge, float scale, float slope) {
  const Index lanes = round_up(edge.queries, block_columns);
  float new_maximum[query_tile];
  std::copy(tile.maximum, tile.maximum + lanes, new_maximum);
  const float hidden_from = edge.causal ? 0.0f : std::numeric_limits<float>::infinity();
  for (Index key = 0; key < edge.keys; ++key) {
    float* z = tile.p + key * query_tile;
    const float bias = biased ? tile.bias[key] : 0.0f;
#pragma omp simd
    for (Index i = first_lane(edge, key); i < lanes; ++i) {
      const float lag = static_cast<float>(key) - tile.position[i];
      const float without = z[i] * scale + slope * lag, logit = biased ? without + bias : without;
      z[i] = lag > hidden_from ? -std::numeric_limits<float>::infinity() : logit;
      new_maximum[i] = z[i] > new_maximum[i] ? z[i] : new_maximum[i];
    }
  }
#pragma omp simd
  for (Index i = 0; i < lanes; ++i) {
    tile.shrink[i] = simd::exp(tile.maximum[i] - new_maximum[i]);
    tile.maximum[i] = new_maximum[i];
  }
}

// p^T <- exp(logits - maximum). Adds p to sum.
SIMD_INLINE void exponentials(const ForwardTile& tile, const TileEdge& edge) {
  const Index lanes = round_up(edge.queries, block_columns);
  float added[query_tile] = {};
  for (Index key = 0; key < edge.keys; ++key) {
    float* p = tile.p + key * query_tile;
#pragma omp simd
    for (Index i = first_lane(edge, key); i < lanes; ++i) {
      p[i] = simd::exp(p[i] - tile.maximum[i]);
      added[i] += p[i];
    }
  }
#pragma omp simd
  for (Index i = 0; i < lanes; ++i) tile.sum[i] = tile.sum[i] * tile.shrink[i] + added[i];
}

// Adds one tile of keys to the online softmax: z^T = K q^T, out <- out * shrink + p v.
SIMD_CLONES void attend(const ForwardTile& tile, const TileEdge& edge, float scale, float slope,
                        bool biased) {
  const Index lanes = round_up(edge.queries, block_columns);
  for (Index key = 0; key < edge.keys; key += block_rows) {
    const Index first = first_lane(edge, key);
    product_rows({tile.k + key * tile.width, tile.width, 1}, tile.q + first,
                 tile.p + key * query_tile + first, query_tile, lanes - first, tile.head_dim, false);
  }
  if (biased)
    logits<true>(tile, edge, scale, slope);
  else
    logits<false>(tile, edge, scale, slope);
  exponentials(tile, edge);
  for (Index i = 0; i < edge.queries; ++i) {
    if (tile.shrink[i] == 1.0f) continue;
    float* row = tile.out + i * tile.width;
#pragma omp simd
    for (Index c = 0; c < tile.width; ++c) row[c] *= tile.shrink[i];
  }
  for (Index i = 0; i < edge.queries; i += block_rows)
    product_rows({tile.p + i, 1, query_tile}, tile.v, tile.out + i * tile.width, tile.width, tile.width,
                 edge.keys_seen(i + block_rows - 1), true);
}

// Computes out and lse of the queries first_query .. first_query + query_tile - 1 of one head.
void attend_all_keys(const AttentionForward& op, Index b, Index h, Index first_query, float* memory) {
  const Index t_q = op.q.shape[1], t_k = op.k.shape[1], heads = op.q.shape[2], head_dim = op.q.shape[3];
  const Index queries = std::min(query_tile, t_q - first_query);
  const Index position = first_query + t_k - t_q;  // i' of the first query
  const Index key_head = h / heads_of_group(op.q, op.k);
  const auto q = head_rows(op.q, b, h), k = head_rows(op.k, b, key_head), v = head_rows(op.v, b, key_head);
  const float slope = op.slope ? op.slope.as<float>()[h] : 0.0f;
  const KeyBias key_bias(op.key_bias, b, h, position);

  const ForwardTile tile(memory, head_dim);
  load_transposed(tile.q, query_tile, {q[first_query], q.stride}, queries, head_dim);
  std::fill_n(tile.out, query_tile * tile.width, 0.0f);
  std::fill_n(tile.sum, query_tile, 0.0f);
  std::fill_n(tile.maximum, query_tile, -std::numeric_limits<float>::infinity());
  const Index end = op.causal ? position + queries : t_k;
  for (Index first_key = 0; first_key < end; first_key += key_tile) {
    const TileEdge edge{queries, std::min(key_tile, t_k - first_key), position - first_key, op.causal};
    for (Index i = 0; i < query_tile; ++i) tile.position[i] = static_cast<float>(edge.lead + i);
    const Index padded = round_up(edge.keys, block_rows);
    load_tile(tile.k, padded, tile.width, {k[first_key], k.stride}, edge.keys, head_dim);
    load_tile(tile.v, padded, tile.width, {v[first_key], v.stride}, edge.keys, head_dim);
    if (key_bias) key_bias.load(tile.bias, first_key, edge.keys);
    attend(tile, edge, op.scale, slope, static_cast<bool>(key_bias));
  }

  const auto out = head_rows<float>(op.out, b, h);
  float* lse = op.lse.as<float>() + (b * heads + h) * t_q + first_query;
  for (Index i = 0; i < queries; ++i) {
    for (Index c = 0; c < head_dim; ++c) out[first_query + i][c] = tile.out[i * tile.width + c] / tile.sum[i];
    lse[i] = tile.maximum[i] + std::log(tile.sum[i]);
    if (key_bias) lse[i] -= key_bias.at(position + i);
  }
}
}  // namespace

std::size_t CpuDevice::workspace(const AttentionForward& op) const {
  if (decodes(op)) return decode_workspace(op);
  return Scratch::bytes(omp_get_max_threads(), ForwardTile::floats(op.q.shape[3]));
}

// Threads own query tiles. Tiles that see the most keys come first. Reads q and writes out once; reads k and
// v once per query tile (from cache).
void CpuDevice::launch(const AttentionForward& op) {
  if (decodes(op)) return decode(op, workspace_.take(op));
  op.q.as<float>();  // throws for a wrong dtype here, not in a thread
  const Index heads = op.q.shape[2], tiles = tiles_of(op.q.shape[1], query_tile),
              items = op.q.shape[0] * heads * tiles;
  const Scratch scratch(workspace_.take(op), ForwardTile::floats(op.q.shape[3]));
#pragma omp parallel for schedule(dynamic, 1)
  for (Index item = 0; item < items; ++item) {
    const Index head = item / tiles, tile = tiles - 1 - item % tiles;
    attend_all_keys(op, head / heads, head % heads, tile * query_tile,
                    scratch.of_thread(omp_get_thread_num()));
  }
}

}  // namespace goat
