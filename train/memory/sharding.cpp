#include "train/memory/sharding.h"

namespace goat {

namespace {
std::int64_t divided_up(std::int64_t count, std::int64_t divisor) { return (count + divisor - 1) / divisor; }
}  // namespace

std::int64_t padded_elements(std::int64_t elements, int ranks) {
  if (ranks == 1) return elements;
  return divided_up(elements, ranks * chunk_elements) * ranks * chunk_elements;
}

std::vector<Bucket> buckets_of(std::int64_t elements, const Sharding& sharding) {
  if (elements == 0) return {};
  if (sharding.size == 1) return {{0, elements}};
  const std::int64_t row = sharding.size * chunk_elements,  // a chunk for each rank
      rows = divided_up(elements, row), most = std::max<std::int64_t>(1, sharding.bucket_elements / row);
  std::vector<Bucket> buckets;
  for (std::int64_t done = 0; done < rows; done += most)
    buckets.push_back({done * row, std::min(most, rows - done) * chunk_elements});
  return buckets;
}

std::vector<Piece> pieces_of(const std::vector<Bucket>& buckets, int piece) {
  std::vector<Piece> pieces;
  std::int64_t in_shard = 0;
  for (const Bucket& bucket : buckets) {
    pieces.push_back({bucket.first + piece * bucket.piece_elements, bucket.piece_elements, in_shard});
    in_shard += bucket.piece_elements;
  }
  return pieces;
}

}  // namespace goat
