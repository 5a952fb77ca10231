// ShardScan: what rank 0 has read of a set of shards, so that the other ranks need not read it again.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/shard.h"
#include "data/shard_meta.h"

namespace goat {

struct ShardScan {
  std::string working_folder;              // of rank 0, absolute: where relative paths begin
  std::vector<ScannedShard> shards;        // in the order of the stream, at least one
  std::map<std::string, ShardMeta> metas;  // by folder, as ShardSet::metas()
  bool operator==(const ShardScan&) const = default;
};

// Bytes for other ranks. They begin with a checksum.
std::string encode(const ShardScan& scan);
ShardScan decode_shard_scan(std::string_view bytes);  // throws DataError unless encode() made the bytes

// Several sources' scans as one, and back. Throws DataError if the bytes are not `count` joined scans.
std::string join_scans(const std::vector<std::string>& scans);
std::vector<std::string> split_scans(std::string_view bytes, std::size_t count);

}  // namespace goat
