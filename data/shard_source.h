// ShardSource: training sequences cut from the stream of a set of shards.
#pragma once

#include <string>
#include <vector>

#include "data/shard_set.h"
#include "data/token_source.h"

namespace goat {

struct ShardOptions {
  std::string pattern;       // see ShardFiles
  std::int64_t seq_len = 0;  // T
  bool bos_block = true;     // false: window
  std::int32_t bos = 0;      // token before each block in bos mode
  std::int64_t vocab = 0;    // every token must be below it
  bool shuffle = false;
  std::uint64_t seed = 0;
  std::string advice{};              // see ShardFiles
  std::vector<std::string> files{};  // see ShardFiles
  std::string scan{};                // see ShardFiles
  int check_rank = 0;                // see ShardFiles
  int check_size = 1;
};

// A block that starts at stream position o holds
//   bos:     BOS, s_o .. s_{o+T-1}      inputs BOS, s_o .. s_{o+T-2}     targets s_o .. s_{o+T-1}
//   window:  s_o .. s_{o+T}             inputs s_o .. s_{o+T-1}          targets s_{o+1} .. s_{o+T}
// Consecutive blocks start T tokens apart, so that each token is a target at most once per epoch. A block may
// cross the border between two shards.
//
// Not shuffled (validation): block b starts at b T. An index >= sequences() starts again at block 0.
//
// Shuffled (training): epoch e = index / sequences() has its own permutation of the blocks, and its own shift
// of all blocks, uniform in [0, T), so that the model does not see the same windows again. sequences() must
// be the same in every epoch. Therefore it counts the blocks that fit at the largest shift: (N - T + 1) / T
// of N tokens in bos mode. This is at most one block less than without a shift, and the tokens left out
// differ between epochs. A stream that is too short for this (N < 2T - 1) has one block, with a shift that
// keeps it inside the stream.
class ShardSource final : public TokenSource {
 public:
  // Throws DataError for what ShardSet refuses, and if all shards together are too short for one sequence.
  explicit ShardSource(const ShardOptions& options);

  std::string description() const override;
  std::uint64_t sequences() const override { return blocks_; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override;
  void finish_check() const override { set_.finish_check(); }
  std::vector<ShardRecord> shards() const override { return set_.records(); }
  std::string scan() const override { return set_.scan(); }
  std::string tokenizer() const override { return set_.tokenizer(); }
  std::string tokenizer_sha256() const override { return set_.tokenizer_sha256(); }
  std::vector<std::string> notes() const override;

  std::int64_t tokens() const { return set_.tokens(); }

 private:
  std::int64_t block_start(std::uint64_t index) const;

  ShardOptions options_;
  ShardSet set_;
  std::uint64_t blocks_ = 0;  // one sequence each
  std::int64_t shifts_ = 0;   // the shift of a shuffled epoch is in [0, shifts_)
};

}  // namespace goat
