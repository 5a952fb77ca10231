// ShardSource: training sequences cut out of one long stream of tokens, which lies in the shards that match a
// glob, one after the other by name.
#pragma once

#include <future>
#include <map>
#include <stop_token>
#include <vector>

#include "data/shard.h"
#include "data/shard_meta.h"
#include "data/token_source.h"

namespace goat {

struct ShardOptions {
  std::string pattern;       // glob(3), with ~; a name that a file has means that file
  std::int64_t seq_len = 0;  // T
  bool bos_block = true;     // false: window
  std::int32_t bos = 0;      // the token before each block in bos mode
  std::int64_t vocab = 0;    // every token must be smaller
  bool shuffle = false;
  std::uint64_t seed = 0;
  std::string advice{};              // how to get such shards, for the error where none is there
  std::vector<std::string> files{};  // if any: these shards, in this order; messages call them by the pattern
};

// The files that a pattern means, sorted by bytes; none where nothing matches.
std::vector<std::string> files_matching(const std::string& pattern);

// A block that starts at stream position o holds
//   bos:     BOS, s_o .. s_{o+T-1}      inputs BOS, s_o .. s_{o+T-2}     targets s_o .. s_{o+T-1}
//   window:  s_o .. s_{o+T}             inputs s_o .. s_{o+T-1}          targets s_{o+1} .. s_{o+T}
// and blocks follow each other at a stride of T, so that each token is a target at most once an epoch. Blocks
// cross the borders of shards.
//
// Not shuffled (validation): block b starts at b T, and index >= sequences() begins again at block 0.
//
// Shuffled (training): epoch e = index / sequences() has its own permutation of the blocks and its own shift
// of all of them, uniform in [0, T), so that the model does not meet the same windows again. For sequences()
// to be the same in every epoch it counts the blocks that fit at the largest shift, (N - T + 1) / T of N
// tokens in bos mode: at most one block less than without a shift, and the tokens left out differ between
// epochs. A stream too short even for that (N < 2T - 1) has one block, shifted within what there is.
//
// The whole set is checked once in the background while training begins, for token ids outside the
// vocabulary; what it finds is thrown by the next read. Reads check their own tokens as well, so that no bad
// id is ever used. read() may be called by several threads.
class ShardSource final : public TokenSource {
 public:
  // Opens every shard. Throws DataError if one is not valid, none matches, or all of them are too short for
  // one sequence.
  explicit ShardSource(ShardOptions options);
  ShardSource(const ShardSource&) = delete;
  ShardSource& operator=(const ShardSource&) = delete;
  ~ShardSource() override;

  std::string description() const override;
  std::uint64_t sequences() const override { return blocks_; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override;
  void finish_check() const override { check_.get(); }
  std::vector<ShardRecord> shards() const override;
  std::string tokenizer() const override;
  std::vector<std::string> notes() const override;

  std::int64_t tokens() const { return starts_.back(); }

 private:
  void read_metas();
  std::int64_t block_start(std::uint64_t index) const;
  void read_stream(std::int64_t first, std::span<std::uint16_t> tokens) const;
  void check_all_tokens(const std::stop_token& stop) const;

  ShardOptions options_;
  std::vector<Shard> shards_;
  std::map<std::string, ShardMeta> metas_;  // by folder, of those that have one
  std::vector<std::int64_t> starts_;        // stream position of each shard's first token, and the total
  std::uint64_t blocks_ = 0;                // a sequence each
  std::int64_t shifts_ = 0;                 // shuffled epochs start at a position in [0, shifts)
  std::stop_source stop_;
  std::shared_future<void> check_;  // last, so that the check has ended before the shards go
};

}  // namespace goat
