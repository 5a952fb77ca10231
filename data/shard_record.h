// ShardRecord: identifies a shard independently of its folder. It shows whether a shard was replaced
// or made again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace goat {

struct ShardRecord {
  std::string name;         // file name without its folder
  std::int64_t tokens = 0;  // number of tokens
  std::string samples;      // checksum of the header and of pieces spread over the file
  std::string sha256;       // of the whole file, from the meta.json beside it; empty if there is none

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
