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

// Shows whether a path still names the same file with the same contents.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // time in ns
  bool operator==(const FileIdentity&) const = default;
};

// Reads with pread, not through a memory map. If a mapped file is cut short, the system kills the process
// (SIGBUS), and no check beforehand can prevent that. The file is opened again for every read, so that
// thousands of shards need no descriptors. It is then compared with the file that was opened first (device,
// inode, size, time of modification). Therefore a shard that was removed, replaced or rewritten during
// training is an error. Both calls take microseconds; a training step takes milliseconds. A Shard is
// immutable, so that threads may share it.
class Shard {
 public:
  static constexpr std::int32_t magic = 20240520;
  static constexpr std::int32_t version = 1;
  static constexpr std::int64_t header_bytes = 256 * sizeof(std::int32_t);

  // Opens the file and checks its header against its size. Throws DataError.
  Shard(std::string path, std::int64_t vocab);

  const std::string& path() const { return path_; }
  std::int64_t tokens() const { return tokens_; }

  // Reads tokens first .. first + size - 1. Throws std::out_of_range if they are not all in the shard, and
  // DataError if the file has changed or a token is not below the vocabulary size.
  void read(std::int64_t first, std::span<std::uint16_t> tokens) const;

  // Checksum of the header and of 16 pieces of 4 KiB, spread over the file. Throws DataError.
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
