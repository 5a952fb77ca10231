// ShardSet: the shards that match a glob pattern, in the order of their names, as one long stream of tokens.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/shard.h"
#include "data/shard_meta.h"
#include "data/shard_record.h"
#include "data/shard_scan.h"

namespace goat {

// The files that match a pattern, sorted by bytes. Empty if nothing matches.
std::vector<std::string> files_matching(const std::string& pattern);

struct ShardFiles {
  // glob(3) pattern, with ~. A pattern that is the name of a file means that file.
  std::string pattern;
  std::int64_t vocab = 0;  // every token must be below it
  // How to get such shards, for the error message if there are none.
  std::string advice{};
  // If not empty: these shards, in this order. Messages still use the pattern as their name.
  std::vector<std::string> files{};
  // If not empty: ShardSet::scan() of rank 0, which tells the shards and what is beside them. The set is
  // built without a look at any file.
  std::string scan{};
  // The background check takes the shards check_rank, check_rank + check_size, ...
  int check_rank = 0, check_size = 1;
};

// The header of every shard is read at the start. Then a background thread of low priority reads the
// whole set (or this rank's share of it) once, and checks that each token is in the vocabulary, and each
// file's sha256 where the meta.json beside it states one. The next read() throws the error that it finds.
// read() also checks its own tokens, so that no bad id is ever used. Several threads may call it.
class ShardSet {
 public:
  // Throws DataError if a shard is not valid (the first one by name), if no file matches, or if the shards'
  // meta.json do not fit the vocabulary or each other. With a scan: DataError if its bytes are damaged; a
  // shard's own errors come with its first read.
  explicit ShardSet(ShardFiles files);
  ShardSet(const ShardSet&) = delete;
  ShardSet& operator=(const ShardSet&) = delete;
  ~ShardSet();

  // Reads tokens first .. first + size - 1 of the stream, which must be there. Throws DataError.
  void read(std::int64_t first, std::span<std::int32_t> tokens) const;
  // The tokens from `first` on as inputs, and those one further on as targets.
  void read_window(std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  // Waits for the background check. Throws what it found.
  void finish_check() const { check_.get(); }

  const std::vector<Shard>& shards() const { return shards_; }
  std::int64_t tokens() const { return starts_.back(); }
  const std::string& pattern() const { return files_.pattern; }
  std::string description() const;  // "2 shards 'train_*.bin': 300 tokens"
  // The descriptions beside the shards, by folder. Only folders that have one.
  const std::map<std::string, ShardMeta>& metas() const { return metas_; }
  std::string tokenizer() const;  // see TokenSource
  std::string tokenizer_sha256() const;
  std::vector<ShardRecord> records() const;
  // For the sets of other ranks, encoded. Reads the samples of every shard, once for all calls of this and of
  // records(). Throws DataError.
  std::string scan() const;
  // Names the shards that meta.json lists, the pattern asks for, and are not there.
  std::vector<std::string> notes() const;

 private:
  void open_shards();
  void read_metas();
  void take_scan();
  void add_shard(Shard shard);
  void add_meta(const std::string& folder, ShardMeta meta);
  void check_meta(const std::string& folder, const ShardMeta& meta) const;
  const std::vector<std::string>& samples() const;  // Shard::samples_checksum() of each
  std::string sha256_of(const Shard& shard) const;  // as meta.json says; empty if it does not
  void check_all(const std::stop_token& stop) const;

  ShardFiles files_;
  std::string working_folder_;  // where relative paths of shards begin
  std::vector<Shard> shards_;
  std::vector<std::int64_t> starts_{0};  // stream position of each shard's first token, and the total
  std::map<std::string, ShardMeta> metas_;
  mutable std::mutex samples_mutex_;
  mutable std::vector<std::string> samples_;  // once known
  std::stop_source stop_;
  std::shared_future<void> check_;  // last, so that the check ends before the shards are destroyed
};

}  // namespace goat
