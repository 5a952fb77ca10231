// ShardRecord: what tells a shard from another one, or from itself after it was made again, in whatever
// folder it lies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace goat {

struct ShardRecord {
  std::string name;         // of the file, without its folder
  std::int64_t tokens = 0;  // in it
  std::string samples;      // checksum of the header and of pieces all over the file
  std::string sha256;       // of the whole file, as the meta.json beside it has it; empty where there is none

  // A missing sha256 counts as equal to any other.
  bool same_as(const ShardRecord& other) const {
    return name == other.name && tokens == other.tokens && samples == other.samples &&
           (sha256 == other.sha256 || sha256.empty() || other.sha256.empty());
  }
};

inline bool same_shards(const std::vector<ShardRecord>& a, const std::vector<ShardRecord>& b) {
  return std::ranges::equal(a, b, [](const ShardRecord& x, const ShardRecord& y) { return x.same_as(y); });
}

}  // namespace goat
