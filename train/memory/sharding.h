// How the ranks of a run share the flat arrays of a model: gradients are summed and weights are gathered
// bucket by bucket, and each rank updates its piece of every bucket.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace goat {

// Ranks are counted node by node. Gradients are added among the ranks of a node first, then among those of
// the same place on all nodes: what a node adds together must lie together, so that rank r's piece of a
// bucket is not always piece r.
struct Sharding {
  int rank = 0, size = 1;
  std::int64_t bucket_elements = 0;  // about; only for several ranks
  int nodes = 1;                     // of equally many ranks; 1: all are added at once

  int place_on_node() const { return rank % (size / nodes); }
  int node() const { return rank / (size / nodes); }
  int piece() const { return place_on_node() * nodes + node(); }  // the number of this rank's
};

// Elements of a flat array that travel together: size * piece_elements of them, from `first` on.
struct Bucket {
  std::int64_t first = 0;
  std::int64_t piece_elements = 0;
  bool operator==(const Bucket&) const = default;
};

// A rank's piece of a bucket.
struct Piece {
  std::int64_t first = 0;  // in the flat array
  std::int64_t elements = 0;
  std::int64_t shard_first = 0;  // in the rank's shard, which holds its pieces one after the other
  bool operator==(const Piece&) const = default;
};

// Pieces consist of whole chunks, for which squares are summed. A chunk holds the same elements for any
// number of ranks.
inline constexpr std::int64_t chunk_elements = 32'768;

// Length of an array of so many elements on each rank: buckets that end in zeros have equal pieces. One rank
// needs none.
std::int64_t padded_elements(std::int64_t elements, int ranks);

// They cover padded_elements() once, in order. One rank has one bucket.
std::vector<Bucket> buckets_of(std::int64_t elements, const Sharding& sharding);
std::vector<Piece> pieces_of(const std::vector<Bucket>& buckets, int piece);  // piece: Sharding::piece

// Default of distributed.bucket_mib, in elements of a gradient: the larger of 64 MiB and 2 MiB a rank. Small
// buckets cost latency, large ones memory for the parts of all ranks.
constexpr std::int64_t default_bucket_elements(int ranks) {
  constexpr std::int64_t mib = (1 << 20) / sizeof(float);
  return std::max<std::int64_t>(64 * mib, 2 * mib * ranks);
}

}  // namespace goat
