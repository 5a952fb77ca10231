// CropSource: training sequences cut from records of one length, such as the pieces of a genome.
#pragma once

#include <string>
#include <vector>

#include "data/shard_set.h"
#include "data/token_source.h"

namespace goat {

struct CropOptions {
  std::string pattern;             // see ShardFiles
  std::int64_t seq_len = 0;        // T
  std::int64_t record_tokens = 0;  // R > T
  std::int64_t vocab = 0;          // every token must be below it
  bool shuffle = false;
  std::uint64_t seed = 0;
  std::string advice{};              // see ShardFiles
  std::vector<std::string> files{};  // see ShardFiles
  std::string scan{};                // see ShardFiles
  int check_rank = 0;                // see ShardFiles
  int check_size = 1;
};

// Record r is tokens r R .. (r + 1) R - 1 of the stream; each shard holds whole records. A sequence is a crop
// c_0 .. c_T of one record: inputs c_0 .. c_{T-1}, targets c_1 .. c_T. sequences() is the number of records.
//
// Not shuffled (validation): sequence r is the crop at the start of record r, at any T.
//
// Shuffled (training): epoch e = index / sequences() has its own permutation of the records, and cuts each
// one at its own offset, uniform in [0, R - T - 1]:
//   floor(w_0 / 2^32 * (R - T)),  (w_0, ..) = philox4x32((low half of r, high half of r, 0, 0), key),
// where key is the first two words of block 2 of (seed, RandomStream::shuffle, e). Blocks 0 and 1 are
// ShardSource's; the permutation's key is block 0 here too.
class CropSource final : public TokenSource {
 public:
  // Throws DataError for what ShardSet refuses, for shards that do not hold whole records of record_tokens
  // or whose meta.json states another length, and for T >= R.
  explicit CropSource(const CropOptions& options);

  std::string description() const override;
  std::uint64_t sequences() const override { return records_; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override;
  void finish_check() const override { set_.finish_check(); }
  std::vector<ShardRecord> shards() const override { return set_.records(); }
  std::string scan() const override { return set_.scan(); }
  std::string tokenizer() const override { return set_.tokenizer(); }
  std::string tokenizer_sha256() const override { return set_.tokenizer_sha256(); }
  std::vector<std::string> notes() const override { return set_.notes(); }

 private:
  void check_records() const;
  std::int64_t crop_start(std::uint64_t index) const;  // in the stream

  CropOptions options_;
  ShardSet set_;
  std::uint64_t records_ = 0;
};

}  // namespace goat
