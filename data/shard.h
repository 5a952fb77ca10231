// Shard: one file of tokens in the format of llm.c: 256 int32 (magic number, version, token count, zeros),
// then the tokens, little-endian. Their width is told by the magic number and the version:
//   20240520, 1: uint16 (bytes, GPT-2)
//   20240801, 7: uint32 (Llama 3 and other vocabularies of more than 65,536)
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
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

// What rank 0 has read of a shard.
struct ScannedShard {
  std::string path;              // as rank 0 names it: absolute, or relative to its working folder
  std::int64_t token_bytes = 0;  // 2 or 4
  std::int64_t tokens = 0;
  std::string samples;  // Shard::samples_checksum()
  bool operator==(const ScannedShard&) const = default;
};

// Reads with pread, not through a memory map. If a mapped file is cut short, the system kills the process
// (SIGBUS), and no check beforehand can prevent that. The file is opened again for every read, so that
// thousands of shards need no descriptors. It is then compared with the file that was opened first (device,
// inode, size, time of modification). Therefore a shard that was removed, replaced or rewritten during
// training is an error. Both calls take microseconds; a training step takes milliseconds. Threads may share
// a Shard.
class Shard {
 public:
  struct Format {
    std::int32_t magic, version;
    std::int64_t token_bytes;
  };
  static constexpr Format uint16_tokens{20240520, 1, 2}, uint32_tokens{20240801, 7, 4};
  static constexpr std::int64_t header_bytes = 256 * sizeof(std::int32_t);

  // Opens the file and checks its header against its size. Throws DataError.
  Shard(std::string path, std::int64_t vocab);
  // As rank 0, with the working folder `folder`, has opened it. Opens nothing. The first read compares the
  // file's size and header with the scan, and throws DataError if they differ.
  Shard(const ScannedShard& scanned, const std::string& folder, std::int64_t vocab);
  Shard(Shard&& other) noexcept;
  ~Shard();

  const std::string& path() const { return path_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t token_bytes() const { return format_.token_bytes; }
  std::int64_t bytes() const { return offset_of(tokens_); }

  // Reads tokens first .. first + size - 1. Throws std::out_of_range if they are not all in the shard, and
  // DataError if the file has changed or a token is not below the vocabulary size.
  void read(std::int64_t first, std::span<std::int32_t> tokens) const;

  // Reads the whole file once, in large pieces. Throws DataError if a token is not below the vocabulary size,
  // if the file has changed, or if its sha256 is another than this one (empty: not known). Calls of several
  // threads take turns, piece by piece, so that together they take one core at most. Returns early on `stop`.
  void verify(const std::string& sha256, const std::stop_token& stop) const;

  // Checksum of the header and of 16 pieces of 4 KiB, spread over the file. Throws DataError.
  std::string samples_checksum() const;

 private:
  class File;
  struct FirstOpened;
  // Opens the file, which must be the one that was opened first or, if none was yet, as rank 0 has read it.
  File open() const;
  bool opened_before() const;
  void check_unchanged(const FileIdentity& now) const;
  void check_scanned(const File& file, std::int64_t size) const;
  std::int64_t offset_of(std::int64_t token) const { return header_bytes + format_.token_bytes * token; }
  // Id: std::uint16_t or std::uint32_t, as the file has them.
  template <class Id>
  void check_vocabulary(std::int64_t first, std::span<const Id> ids) const;
  template <class Id>
  void read_as(std::int64_t first, std::span<std::int32_t> tokens) const;
  template <class Id>
  void verify_as(const std::string& sha256, const std::stop_token& stop) const;

  std::string path_;
  std::string location_;  // the file to open, which messages name
  std::int64_t vocab_;
  Format format_ = uint16_tokens;
  std::int64_t tokens_ = 0;
  std::unique_ptr<FirstOpened> first_;
};

}  // namespace goat
