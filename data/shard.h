// Shard: one file of tokens in the format of llm.c: 256 int32 (magic 20240520, version 1, token count,
// zeros), then the tokens as uint16, little-endian.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>

#include "data/data_error.h"

namespace goat {

static_assert(std::endian::native == std::endian::little,
              "token shards are read as they lie on disk: little-endian machines only");

// What tells a file from one that took its place, or from itself after a change.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // ns
  bool operator==(const FileIdentity&) const = default;
};

// Reads with pread rather than through a memory map: a file that is cut short under a map kills the process
// (SIGBUS), and no check beforehand can rule that out. The file is opened anew for every read, so that a set
// of thousands of shards needs no descriptors, and is then compared (device, inode, size, time of
// modification) with the file that was opened at first: a shard that was removed, replaced or rewritten
// during training is an error. Both calls cost microseconds against the milliseconds of a training step. A
// Shard is immutable: threads may share it.
class Shard {
 public:
  static constexpr std::int32_t magic = 20240520;
  static constexpr std::int32_t version = 1;
  static constexpr std::int64_t header_bytes = 256 * sizeof(std::int32_t);

  // Opens the file and checks its header against its size. Throws DataError.
  Shard(std::string path, std::int64_t vocab);

  const std::string& path() const { return path_; }
  std::int64_t tokens() const { return tokens_; }

  // Tokens first .. first + size - 1, which must lie in the shard, each below the vocabulary size. Throws
  // DataError.
  void read(std::int64_t first, std::span<std::uint16_t> tokens) const;

  // Checksum of the header and of 16 pieces of 4 KiB all over the file. Throws DataError.
  std::string samples_checksum() const;

 private:
  void check_unchanged(const FileIdentity& now) const;
  void check_vocabulary(std::int64_t first, std::span<const std::uint16_t> tokens) const;

  std::string path_;
  std::int64_t vocab_;
  std::int64_t tokens_ = 0;
  FileIdentity identity_{};
};

}  // namespace goat
