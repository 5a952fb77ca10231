// Attention backward on the CPU. It visits the same tiles as the forward pass and recomputes p from lse.
//
// A tile computes s = q k^T and dp = dout v^T, then p = exp(z - lse) and dS = p (dp - delta) in place, with
// keys along the vector lanes. From them it computes dv += p^T dout, dk += dS^T q, dq += dS k and the column
// sums dkey_bias and dslope.
//
// There are two schedules. If there are enough heads, a thread owns a head of k and v and the group of heads
// of q that share it, visits every tile once, and keeps dq of a head (and dk and dv, if the group has
// several) in its scratch. With few heads, threads own tiles of keys, then tiles of queries, and compute s
// and dp twice: 7 products instead of 5, but all threads work. Both add the same terms in the same order, the
// heads of a group one after the other, so that the gradients do not depend on the schedule or on the number
// of threads.
#include <omp.h>

#include <numeric>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/cpu_device.h"

namespace goat {

namespace {
using namespace attention;

// The tiles of one thread. D = d_h rounded up to 16.
struct BackwardTiles {
  float* k;            // [key_tile, D]
  float* k_columns;    // [d_h, key_tile], k transposed
  float* v_columns;    // [d_h, key_tile], v transposed
  float* dk;           // [key_rows, D], not yet scaled; one tile or a whole head
  float* dv;           // [key_rows, D]
  float* dkey_bias;    // [key_tile]
  float* dslope;       // [key_tile]
  float* q;            // [query_tile, D]
  float* dout;         // [query_tile, D]
  float* p;            // [query_tile, key_tile]: s, then p
  float* ds;           // [query_tile, key_tile]: dp, then dS
  float* bias;         // [key_tile], what the key bias adds to the logits
  float* biased_lse;   // [query_tile], lse of logits with that bias
  float* dq;           // [query_rows, D], not yet scaled; one tile or a whole head
  const float* lse;    // [query_tile]
  const float* delta;  // [query_tile]
  Index head_dim;
  Index width;  // D

  static Index floats(Index head_dim, Index query_rows, Index key_rows) {
    const Index width = round_up(head_dim, block_columns);
    return key_tile * width + 2 * head_dim * key_tile + 2 * round_up(key_rows, key_tile) * width +
           3 * key_tile + 2 * query_tile * width + 2 * query_tile * key_tile + query_tile +
           round_up(query_rows, query_tile) * width;
  }
  BackwardTiles(float* memory, Index head_dimension, Index key_rows)
      : head_dim(head_dimension), width(round_up(head_dimension, block_columns)) {
    const auto take = [&memory](Index count) { return std::exchange(memory, memory + count); };
    k = take(key_tile * width);
    k_columns = take(head_dim * key_tile);
    v_columns = take(head_dim * key_tile);
    dk = take(round_up(key_rows, key_tile) * width);
    dv = take(round_up(key_rows, key_tile) * width);
    dkey_bias = take(key_tile);
    dslope = take(key_tile);
    q = take(query_tile * width);
    dout = take(query_tile * width);
    p = take(query_tile * key_tile);
    ds = take(query_tile * key_tile);
    bias = take(key_tile);
    biased_lse = take(query_tile);
    dq = memory;
    lse = delta = nullptr;
  }
};

enum class Gradients { of_keys, of_queries, of_both };

// Number of key lanes, in whole vectors, that the products read for the block of query rows that starts at
// `row`: all keys up to the last block of keys that these rows see.
SIMD_INLINE Index lanes_seen(const TileEdge& edge, Index row) {
  return round_up(round_up(edge.keys_seen(row + block_rows - 1), block_rows), block_columns);
}

// Computes p and dS of one query row from s and dp. Both are zero at keys that the row does not see. Adds dS
// to the tile's column sums.
template <bool biased>
SIMD_INLINE void softmax_backward(const BackwardTiles& tile, const TileEdge& edge, Index row, float scale,
                                  float slope, float* bias_sum, float* slope_sum) {
  float* p = tile.p + row * key_tile;
  float* ds = tile.ds + row * key_tile;
  const float lse = tile.lse[row], delta = tile.delta[row];
  const float position = static_cast<float>(edge.lead + row);
  const Index lanes = lanes_seen(edge, row / block_rows * block_rows);
  const auto seen = static_cast<int>(edge.keys_seen(row));
#pragma omp simd
  for (int key = 0; key < lanes; ++key) {
    const float lag = static_cast<float>(key) - position;
    const float without = p[key] * scale + slope * lag, logit = biased ? without + tile.bias[key] : without;
    const float probability = key < seen ? simd::exp(logit - lse) : 0.0f;
    const float gradient = key < seen ? probability * (ds[key] - delta) : 0.0f;
    p[key] = probability;
    ds[key] = gradient;
    bias_sum[key] += gradient;
    slope_sum[key] += gradient * lag;
  }
}

// The logits of one tile of queries and keys: z = scale s + slope (j - i') + bias.
struct LogitForm {
  float scale, slope;
  bool biased;
};

// Where one tile's terms go: its rows of dq, dk and dv. dq is overwritten if the tile holds the first keys.
struct GradientRows {
  float *dq, *dk, *dv;
  bool first_keys;
};

// Adds one tile's terms to the gradients.
SIMD_CLONES void differentiate(const BackwardTiles& tile, const TileEdge& edge, const LogitForm& form,
                               Gradients wanted, const GradientRows& to) {
  float bias_sum[key_tile] = {}, slope_sum[key_tile] = {};
  for (Index i = 0; i < edge.queries; i += block_rows) {
    const Index lanes = lanes_seen(edge, i);
    product_rows({tile.q + i * tile.width, tile.width, 1}, tile.k_columns, tile.p + i * key_tile, key_tile,
                 lanes, tile.head_dim, false);
    product_rows({tile.dout + i * tile.width, tile.width, 1}, tile.v_columns, tile.ds + i * key_tile,
                 key_tile, lanes, tile.head_dim, false);
  }
  for (Index i = 0; i < edge.queries; ++i)
    if (form.biased)
      softmax_backward<true>(tile, edge, i, form.scale, form.slope, bias_sum, slope_sum);
    else
      softmax_backward<false>(tile, edge, i, form.scale, form.slope, bias_sum, slope_sum);
  if (wanted != Gradients::of_keys)
    for (Index i = 0; i < edge.queries; i += block_rows)
      product_rows({tile.ds + i * key_tile, key_tile, 1}, tile.k, to.dq + i * tile.width, tile.width,
                   tile.width, edge.keys_seen(i + block_rows - 1), !to.first_keys);
  if (wanted == Gradients::of_queries) return;
  for (Index key = 0; key < edge.keys; key += block_rows) {
    const Index i = edge.first_query(key), depth = edge.queries - i;
    product_rows({tile.p + i * key_tile + key, 1, key_tile}, tile.dout + i * tile.width,
                 to.dv + key * tile.width, tile.width, tile.width, depth, true);
    product_rows({tile.ds + i * key_tile + key, 1, key_tile}, tile.q + i * tile.width,
                 to.dk + key * tile.width, tile.width, tile.width, depth, true);
  }
  for (Index key = 0; key < edge.keys; ++key) {
    tile.dkey_bias[key] += bias_sum[key];
    tile.dslope[key] += slope_sum[key];
  }
}

// The backward pass of one head of k and v and its group of heads of q, in the scratch of one thread.
class GroupBackward {
 public:
  // key_rows: the rows of dk and dv in scratch, those of one tile or all.
  GroupBackward(const AttentionBackward& op, Index key_head, Index key_rows, float* memory)
      : op_(op),
        tiles_(memory, op.q.shape[3], key_rows),
        t_q_(op.q.shape[1]),
        t_k_(op.k.shape[1]),
        group_(heads_of_group(op.q, op.k)),
        key_head_(key_head),
        b_(key_head / op.k.shape[2]) {}

  // Visits every tile once. There is at least one head of q.
  void all() {
    for (Index member = 0; member < group_; ++member) {
      select(member);
      for (Index first_key = 0; first_key < t_k_; first_key += key_tile) {
        const Index row = group_ > 1 ? first_key : 0;  // of dk and dv in scratch
        load_keys(first_key);
        if (member == 0) clear_keys(row);
        visit_queries(first_key, row, Gradients::of_both);
        if (member == group_ - 1) store_keys(first_key, row);
      }
      store_queries(0, t_q_);
    }
  }

  // Computes dk, dv, dkey_bias and dslope of one tile of keys.
  void keys(Index first_key) {
    load_keys(first_key);
    clear_keys(0);
    for (Index member = 0; member < group_; ++member) {
      select(member);
      visit_queries(first_key, 0, Gradients::of_keys);
    }
    store_keys(first_key, 0);
  }

  // Computes dq of one tile of queries of one head of the group.
  void queries(Index member, Index first_query) {
    select(member);
    load_queries(first_query);
    const Index rows = std::min(query_tile, t_q_ - first_query);
    const Index end = op_.causal ? first_query + rows + t_k_ - t_q_ : t_k_;
    for (Index first_key = 0; first_key < end; first_key += key_tile) {
      load_keys(first_key);
      visit(first_query, first_key, Gradients::of_queries, {tiles_.dq, nullptr, nullptr, first_key == 0});
    }
    store_queries(first_query, rows);
  }

 private:
  TileEdge edge(Index first_query, Index first_key) const {
    return {std::min(query_tile, t_q_ - first_query), std::min(key_tile, t_k_ - first_key),
            first_query + t_k_ - t_q_ - first_key, op_.causal};
  }

  Index key_head() const { return key_head_ % op_.k.shape[2]; }

  // The head of q whose gradients are computed next.
  void select(Index member) {
    h_ = key_head() * group_ + member;
    head_ = b_ * op_.q.shape[2] + h_;
    slope_ = op_.slope ? op_.slope.as<float>()[h_] : 0.0f;
  }

  void clear_keys(Index row) {
    std::fill_n(tiles_.dk + row * tiles_.width, key_tile * tiles_.width, 0.0f);
    std::fill_n(tiles_.dv + row * tiles_.width, key_tile * tiles_.width, 0.0f);
  }

  // Adds the terms of the loaded tile of keys and all queries of the head, and stores dkey_bias and dslope.
  // The tile's first row of dk and dv in scratch is `row`. With of_both dq is that of the whole head.
  void visit_queries(Index first_key, Index row, Gradients wanted) {
    std::fill_n(tiles_.dkey_bias, key_tile, 0.0f);
    std::fill_n(tiles_.dslope, key_tile, 0.0f);
    const Index first_row = op_.causal ? std::max<Index>(0, first_key - (t_k_ - t_q_)) : 0;
    for (Index first_query = first_row / query_tile * query_tile; first_query < t_q_;
         first_query += query_tile) {
      load_queries(first_query);
      visit(first_query, first_key, wanted,
            {tiles_.dq + first_query * tiles_.width, tiles_.dk + row * tiles_.width,
             tiles_.dv + row * tiles_.width, first_key == 0});
    }
    store_key_sums(first_key);
  }

  // Adds the terms of the loaded tiles.
  void visit(Index first_query, Index first_key, Gradients wanted, const GradientRows& to) {
    const TileEdge tile_edge = edge(first_query, first_key);
    if (key_bias_) key_bias_.load(tiles_.bias, first_key, tile_edge.keys);
    differentiate(tiles_, tile_edge, {op_.scale, slope_, static_cast<bool>(key_bias_)}, wanted, to);
  }

  void load_keys(Index first_key) {
    const auto k = head_rows(op_.k, b_, key_head()), v = head_rows(op_.v, b_, key_head());
    const Index keys = std::min(key_tile, t_k_ - first_key);
    load_tile(tiles_.k, key_tile, tiles_.width, {k[first_key], k.stride}, keys, tiles_.head_dim);
    load_transposed(tiles_.k_columns, key_tile, {k[first_key], k.stride}, keys, tiles_.head_dim);
    load_transposed(tiles_.v_columns, key_tile, {v[first_key], v.stride}, keys, tiles_.head_dim);
  }

  void load_queries(Index first_query) {
    const auto q = head_rows(op_.q, b_, h_), dout = head_rows(op_.dout, b_, h_);
    const Index queries = std::min(query_tile, t_q_ - first_query), padded = round_up(queries, block_rows);
    load_tile(tiles_.q, padded, tiles_.width, {q[first_query], q.stride}, queries, tiles_.head_dim);
    load_tile(tiles_.dout, padded, tiles_.width, {dout[first_query], dout.stride}, queries, tiles_.head_dim);
    tiles_.lse = op_.lse.as<float>() + head_ * t_q_ + first_query;
    tiles_.delta = op_.delta.as<float>() + head_ * t_q_ + first_query;
    const Index position = first_query + t_k_ - t_q_;
    key_bias_ = KeyBias(op_.key_bias, b_, h_, position);
    if (!key_bias_) return;
    for (Index r = 0; r < queries; ++r) tiles_.biased_lse[r] = tiles_.lse[r] + key_bias_.at(position + r);
    tiles_.lse = tiles_.biased_lse;
  }

  // Writes one row of dq or dk: the content coordinates times scale, and zeros in the lanes. The gradients of
  // the first lanes, times lane_scale, go to row `row` of head `head` of `lanes`, if it is present.
  void store_row(float* to, const float* gradient, const Tensor& lanes, Index head, Index row,
                 float lane_scale) const {
    for (Index c = 0; c < op_.content_dim; ++c) to[c] = op_.scale * gradient[c];
    std::fill(to + op_.content_dim, to + tiles_.head_dim, 0.0f);
    if (!lanes) return;
    float* lane_row = lanes.as<float>() + (head * lanes.shape[2] + row) * lanes.shape[3];
    for (Index c = 0; c < lanes.shape[3]; ++c) lane_row[c] = lane_scale * gradient[op_.content_dim + c];
  }

  // Row 0 of the scratch dq is row `first` of the head.
  void store_queries(Index first, Index count) const {
    const auto dq = head_rows<float>(op_.dq, b_, h_);
    for (Index r = 0; r < count; ++r)
      store_row(dq[first + r], tiles_.dq + r * tiles_.width, op_.dq_lanes, head_, first + r, 1.0f);
  }

  void store_keys(Index first, Index row) const {
    const auto dk = head_rows<float>(op_.dk, b_, key_head()), dv = head_rows<float>(op_.dv, b_, key_head());
    for (Index r = 0; r < std::min(key_tile, t_k_ - first); ++r) {
      const Index from = (row + r) * tiles_.width;
      store_row(dk[first + r], tiles_.dk + from, op_.dk_lanes, key_head_, first + r, op_.scale);
      std::copy_n(tiles_.dv + from, tiles_.head_dim, dv[first + r]);
    }
  }

  void store_key_sums(Index first) const {
    const Index count = std::min(key_tile, t_k_ - first), to = head_ * t_k_ + first;
    if (op_.dkey_bias) std::copy_n(tiles_.dkey_bias, count, op_.dkey_bias.as<float>() + to);
    if (op_.dslope) std::copy_n(tiles_.dslope, count, op_.dslope.as<float>() + to);
  }

  const AttentionBackward& op_;
  BackwardTiles tiles_;
  Index t_q_, t_k_, group_;
  Index key_head_, b_;      // key_head_ = b_ H_k + the head of k
  Index head_ = 0, h_ = 0;  // head_ = b_ H + h_
  float slope_ = 0;
  KeyBias key_bias_;  // of the loaded queries
};

// delta[b, h, i] = <dout_i, out_i>. It is first summed in 16 lanes, so that zero padding of d_h does not
// change a bit. Threads own tokens. Reads dout and out once.
void row_products(const AttentionBackward& op) {
  const Index rows = op.q.shape[0] * op.q.shape[1], t_q = op.q.shape[1], heads = op.q.shape[2],
              head_dim = op.q.shape[3];
  const float *dout = op.dout.as<float>(), *out = op.out.as<float>();
  float* delta = op.delta.as<float>();
#pragma omp parallel for schedule(static)
  for (Index row = 0; row < rows; ++row)
    for (Index h = 0; h < heads; ++h) {
      const Index first = (row * heads + h) * head_dim;
      float lanes[block_columns] = {};
      for (Index c = 0; c < head_dim; c += block_columns)
        for (Index w = 0; w < std::min(block_columns, head_dim - c); ++w)
          lanes[w] += dout[first + c + w] * out[first + c + w];
      delta[(row / t_q * heads + h) * t_q + row % t_q] = std::accumulate(lanes, lanes + block_columns, 0.0f);
    }
}

Index key_heads_of(const AttentionBackward& op) { return op.k.shape[0] * op.k.shape[2]; }

// Whether threads own heads of k and v rather than tiles.
bool by_heads(const AttentionBackward& op) {
  const Index heads = key_heads_of(op), group = heads_of_group(op.q, op.k), threads = omp_get_max_threads();
  // Cost of the two schedules. The unit is one product of one head on one thread.
  const Index products_by_heads = 5 * group * round_up(heads, threads), products_by_tiles = 7 * group * heads;
  return group > 0 && products_by_heads <= products_by_tiles;
}

// Rows of dk and dv that a thread holds. The tiles of a head of q come before those of the next one, so that
// several heads add to the rows of all keys.
Index key_rows_of(const AttentionBackward& op) {
  return by_heads(op) && heads_of_group(op.q, op.k) > 1 ? op.k.shape[1] : key_tile;
}

// The scratch of a thread holds the tiles and dq: that of a head, or of one tile.
Index scratch_floats(const AttentionBackward& op) {
  return BackwardTiles::floats(op.q.shape[3], by_heads(op) ? op.q.shape[1] : query_tile, key_rows_of(op));
}

// A thread owns a head of k and v.
void backward_by_heads(const AttentionBackward& op, const Scratch& scratch) {
  const Index heads = key_heads_of(op), key_rows = key_rows_of(op);
#pragma omp parallel for schedule(dynamic, 1)
  for (Index head = 0; head < heads; ++head)
    GroupBackward(op, head, key_rows, scratch.of_thread(omp_get_thread_num())).all();
}

// A thread owns a tile of keys, then a tile of queries. Tiles with the most work come first.
void backward_by_tiles(const AttentionBackward& op, const Scratch& scratch) {
  const Index key_tiles = tiles_of(op.k.shape[1], key_tile), key_heads = key_heads_of(op),
              query_tiles = tiles_of(op.q.shape[1], query_tile), group = heads_of_group(op.q, op.k);
#pragma omp parallel
  {
    float* memory = scratch.of_thread(omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (Index item = 0; item < key_heads * key_tiles; ++item)
      GroupBackward(op, item / key_tiles, key_tile, memory).keys(item % key_tiles * key_tile);
#pragma omp for schedule(dynamic, 1)
    for (Index item = 0; item < key_heads * group * query_tiles; ++item) {
      const Index head = item / query_tiles;
      GroupBackward(op, head / group, key_tile, memory)
          .queries(head % group, (query_tiles - 1 - item % query_tiles) * query_tile);
    }
  }
}
}  // namespace

std::size_t CpuDevice::workspace(const AttentionBackward& op) const {
  return Scratch::bytes(omp_get_max_threads(), scratch_floats(op));
}

// Reads q, k, v and dout and writes dq, dk and dv once from memory. For each tile of keys, the tiles of q and
// dout are read again from cache.
void CpuDevice::launch(const AttentionBackward& op) {
  const Scratch scratch(workspace_.take(op), scratch_floats(op));
  row_products(op);
  if (by_heads(op))
    backward_by_heads(op, scratch);
  else
    backward_by_tiles(op, scratch);
}

}  // namespace goat
