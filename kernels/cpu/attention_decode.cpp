// The keys are cut into pieces. A thread owns one piece for some heads of k and v: it computes the logits of
// the piece, their softmax, and the sum of the values with these weights. The results of the pieces are then
// merged in their order, weighted by exp(maximum of the piece - maximum of all).
//
// A cache holds the heads of a token one after the other. Therefore all heads are visited for four tokens
// before the next four, so that memory is read in long runs. The heads of q that share a head of k and v, and
// all queries, use a key while it is in cache.
#include "kernels/cpu/attention_decode.h"

#include <omp.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/dot_rows.h"
#include "kernels/workspace.h"

namespace goat::attention {

namespace {
constexpr Index most_queries = 4;
constexpr Index piece_keys = 64;
constexpr int keys_at_once = 4;
constexpr Index items_per_thread = 4;
constexpr Index one_thread = 1 << 13;  // elements of k that one thread reads sooner than two

struct Extents {
  Index batch, t_q, t_k, key_heads, group, head_dim, pieces;

  explicit Extents(const AttentionForward& op)
      : batch(op.q.shape[0]),
        t_q(op.q.shape[1]),
        t_k(op.k.shape[1]),
        key_heads(op.k.shape[2]),
        group(heads_of_group(op.q, op.k)),
        head_dim(op.q.shape[3]),
        pieces(tiles_of(t_k, piece_keys)) {}
  // The rows of one sequence: query i of head h is row h * t_q + i. The rows of a head of k are neighbours.
  Index rows_of_key_head() const { return group * t_q; }
  Index rows() const { return key_heads * rows_of_key_head(); }
};

// The softmax of each row over one piece of keys.
struct PieceResults {
  float* out;      // [rows, d_h], sum of exp(z - maximum) v
  float* maximum;  // [rows], -inf if the row sees no key of the piece
  float* sum;      // [rows], sum of exp(z - maximum)
};

struct DecodeMemory {
  float* out;      // [B, pieces, rows, d_h]
  float* maximum;  // [B, pieces, rows]
  float* sum;      // [B, pieces, rows]
  float* weights;  // [threads, rows, piece_keys]
  int* missing;    // [B, blocks of heads], pieces without results; there are at most H_k blocks
  std::size_t bytes;

  explicit DecodeMemory(const Extents& e, void* workspace = nullptr) {
    WorkspaceArrays arrays(workspace);
    const Index results = e.batch * e.pieces * e.rows();
    out = arrays.next<float>(results * e.head_dim);
    maximum = arrays.next<float>(results);
    sum = arrays.next<float>(results);
    weights = arrays.next<float>(omp_get_max_threads() * e.rows() * piece_keys);
    missing = arrays.next<int>(e.batch * e.key_heads);
    bytes = arrays.bytes();
  }
  PieceResults of_piece(const Extents& e, Index b, Index piece) const {
    const Index first = (b * e.pieces + piece) * e.rows();
    return {out + first * e.head_dim, maximum + first, sum + first};
  }
};

// One sequence of an operand: row t of head h is at data + t * row + h * head.
struct Sequence {
  const float* data;
  Index row, head;

  Sequence(const Tensor& tensor, Index b)
      : data(tensor.as<float>() + b * tensor.stride[0]), row(tensor.stride[1]), head(tensor.stride[2]) {}
  SIMD_INLINE const float* at(Index t, Index h) const { return data + t * row + h * head; }
};

// One piece of keys of one sequence.
struct Piece {
  const AttentionForward& op;
  const Extents& extents;
  Index b, first_key, keys;
  float* weights;  // [rows, piece_keys], logits, then exp(z - maximum)
  PieceResults results;

  Index position(Index query) const { return query + extents.t_k - extents.t_q; }
  // Number of the piece's keys, counted from the first, that query i sees.
  SIMD_INLINE Index keys_seen(Index query) const {
    return op.causal ? std::clamp<Index>(position(query) + 1 - first_key, 0, keys) : keys;
  }
};

// Asks for the rows that follow `keys_at_once` rows of one head, so that they come while those are used.
SIMD_INLINE void prefetch_next(const float* first, Index row, Index head_dim) {
  for (int key = keys_at_once; key < 2 * keys_at_once; ++key)
    for (Index c = 0; c < head_dim; c += dot_lanes) __builtin_prefetch(first + key * row + c);
}

// weights <- <q, k> for `count` keys from `key` on and the heads of q that share `key_head` of k.
template <int count>
SIMD_INLINE void score_keys(const Piece& piece, const Sequence& q, const Sequence& k, Index key,
                            Index key_head) {
  const Extents& extents = piece.extents;
  const float* first = k.at(piece.first_key + key, key_head);
  prefetch_next(first, k.row, extents.head_dim);
  float* weights = piece.weights + key_head * extents.rows_of_key_head() * piece_keys + key;
  for (Index head = key_head * extents.group; head < (key_head + 1) * extents.group; ++head)
    for (Index query = 0; query < extents.t_q; ++query, weights += piece_keys)
      dot_rows<count>(weights, q.at(query, head), first, k.row, extents.head_dim);
}

// weights <- exp(logits - maximum) for the keys that query `query` of `head` sees. Sets maximum and sum.
SIMD_INLINE void softmax(const Piece& piece, Index head, Index query) {
  const Index row = head * piece.extents.t_q + query, seen = piece.keys_seen(query);
  const float scale = piece.op.scale, slope = piece.op.slope ? piece.op.slope.as<float>()[head] : 0.0f;
  const KeyBias key_bias(piece.op.key_bias, piece.b, head, piece.position(query));
  const auto lead = static_cast<float>(piece.position(query) - piece.first_key);
  float bias[piece_keys] = {};
  if (key_bias)
    for (Index key = 0; key < seen; ++key) bias[key] = key_bias.at(piece.first_key + key);
  float* z = piece.weights + row * piece_keys;
  float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
#pragma omp simd reduction(max : maximum)
  for (int key = 0; key < static_cast<int>(seen); ++key) {
    z[key] = z[key] * scale + slope * (static_cast<float>(key) - lead) + bias[key];
    maximum = z[key] > maximum ? z[key] : maximum;
  }
#pragma omp simd reduction(+ : sum)
  for (int key = 0; key < static_cast<int>(seen); ++key) {
    z[key] = simd::exp(z[key] - maximum);
    sum += z[key];
  }
  piece.results.maximum[row] = maximum;
  piece.results.sum[row] = sum;
}

// out += the sum of `count` rows of v with these weights.
template <int count>
SIMD_INLINE void add_values(float* __restrict out, const float* weights, const float* v, Index stride,
                            Index head_dim) {
#pragma omp simd
  for (Index c = 0; c < head_dim; ++c) {
    float sum = out[c];
    for (int key = 0; key < count; ++key) sum += weights[key] * v[key * stride + c];
    out[c] = sum;
  }
}

// The same for the keys from `key` on, at most keys_at_once, that the queries see, and the heads of q that
// share `key_head` of v.
SIMD_INLINE void add_values_of_head(const Piece& piece, const Sequence& v, Index key, Index key_head) {
  const Extents& extents = piece.extents;
  const float* first = v.at(piece.first_key + key, key_head);
  prefetch_next(first, v.row, extents.head_dim);
  const Index first_row = key_head * extents.rows_of_key_head();
  const float* weights = piece.weights + first_row * piece_keys + key;
  float* out = piece.results.out + first_row * extents.head_dim;
  for (Index member = 0; member < extents.group; ++member)
    for (Index query = 0; query < extents.t_q; ++query, weights += piece_keys, out += extents.head_dim) {
      const Index seen = piece.keys_seen(query) - key;
      if (seen >= keys_at_once)
        add_values<keys_at_once>(out, weights, first, v.row, extents.head_dim);
      else
        for (Index next = 0; next < seen; ++next)
          add_values<1>(out, weights + next, first + next * v.row, v.row, extents.head_dim);
    }
}

// Computes the piece's results for the heads first .. last - 1 of k and v.
SIMD_CLONES void attend_piece(const Piece& piece, Index first, Index last) {
  const Extents& extents = piece.extents;
  const Sequence q(piece.op.q, piece.b), k(piece.op.k, piece.b), v(piece.op.v, piece.b);
  Index key = 0;
  for (; key + keys_at_once <= piece.keys; key += keys_at_once)
    for (Index head = first; head < last; ++head) score_keys<keys_at_once>(piece, q, k, key, head);
  for (; key < piece.keys; ++key)
    for (Index head = first; head < last; ++head) score_keys<1>(piece, q, k, key, head);
  for (Index head = first * extents.group; head < last * extents.group; ++head)
    for (Index query = 0; query < extents.t_q; ++query) softmax(piece, head, query);
  const Index floats = extents.rows_of_key_head() * extents.head_dim;
  std::fill(piece.results.out + first * floats, piece.results.out + last * floats, 0.0f);
  for (key = 0; key < piece.keys; key += keys_at_once)
    for (Index head = first; head < last; ++head) add_values_of_head(piece, v, key, head);
}

// out and lse of one row, from the results of its pieces. The first piece's are at `first`, the others'
// follow at a distance of `stride` rows.
SIMD_CLONES void merge_pieces(float* __restrict out, float* lse, const PieceResults& first, Index pieces,
                              Index stride, Index head_dim) {
  float maximum = first.maximum[0], sum = 0;
  for (Index piece = 1; piece < pieces; ++piece) maximum = std::max(maximum, first.maximum[piece * stride]);
  std::fill_n(out, head_dim, 0.0f);
  for (Index piece = 0; piece < pieces; ++piece) {
    const float weight = simd::exp(first.maximum[piece * stride] - maximum);
    sum += weight * first.sum[piece * stride];
    add_values<1>(out, &weight, first.out + piece * stride * head_dim, 0, head_dim);
  }
#pragma omp simd
  for (Index c = 0; c < head_dim; ++c) out[c] /= sum;
  *lse = maximum + std::log(sum);
}

void merge_row(const AttentionForward& op, const Extents& extents, const DecodeMemory& memory, Index b,
               Index row) {
  const Index query = row % extents.t_q, head = row / extents.t_q;
  const PieceResults all = memory.of_piece(extents, b, 0);
  merge_pieces(head_rows<float>(op.out, b, head)[query], op.lse.as<float>() + b * extents.rows() + row,
               {all.out + row * extents.head_dim, all.maximum + row, all.sum + row}, extents.pieces,
               extents.rows(), extents.head_dim);
}
}  // namespace

bool decodes(const AttentionForward& op) {
  return op.q.dtype == DType::f32 && op.q.shape[1] >= 1 && op.q.shape[1] <= most_queries &&
         op.k.shape[1] >= 1 && op.k.shape[2] >= 1;
}

std::size_t decode_workspace(const AttentionForward& op) { return DecodeMemory(Extents(op)).bytes; }

// Threads own (sequence, piece, block of heads). Who computes the last missing piece of a block of heads
// merges its pieces, so that no thread waits for another before the end. Reads k, v and key_bias once. Heads
// are independent, so that the number of their blocks may depend on the number of threads.
void decode(const AttentionForward& op, void* workspace) {
  const Extents extents(op);
  const DecodeMemory memory(extents, workspace);
  const Index per_block = extents.batch * extents.pieces, rows = extents.rows(),
              blocks = std::clamp<Index>(
                  tiles_of(omp_get_max_threads() * items_per_thread, std::max<Index>(1, per_block)), 1,
                  extents.key_heads);
  std::fill_n(memory.missing, extents.batch * blocks, static_cast<int>(extents.pieces));
  const bool alone = extents.batch * extents.t_k * rows * extents.head_dim <= one_thread;
#pragma omp parallel for schedule(dynamic, 1) if (!alone)
  for (Index item = 0; item < per_block * blocks; ++item) {
    const Index block = item % blocks, piece = item / blocks % extents.pieces,
                b = item / blocks / extents.pieces, first_key = piece * piece_keys,
                first = extents.key_heads * block / blocks, last = extents.key_heads * (block + 1) / blocks;
    attend_piece(
        {op, extents, b, first_key, std::min(piece_keys, extents.t_k - first_key),
         memory.weights + omp_get_thread_num() * rows * piece_keys, memory.of_piece(extents, b, piece)},
        first, last);
    const std::atomic_ref<int> missing(memory.missing[b * blocks + block]);
    if (missing.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    for (Index row = first * extents.rows_of_key_head(); row < last * extents.rows_of_key_head(); ++row)
      merge_row(op, extents, memory, b, row);
  }
}

}  // namespace goat::attention
