// ShardSource: training sequences cut from one long stream of tokens. The stream consists of the shards that
// match a glob pattern, in the order of their names.
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
  // glob(3) pattern, with ~. A pattern that is the name of a file means that file.
  std::string pattern;
  std::int64_t seq_len = 0;  // T
  bool bos_block = true;     // false: window
  std::int32_t bos = 0;      // token before each block in bos mode
  std::int64_t vocab = 0;    // every token must be below it
  bool shuffle = false;
  std::uint64_t seed = 0;
  // How to get such shards, for the error message if there are none.
  std::string advice{};
  // If not empty: these shards, in this order. Messages still use the pattern as their name.
  std::vector<std::string> files{};
};

// The files that match a pattern, sorted by bytes. Empty if nothing matches.
std::vector<std::string> files_matching(const std::string& pattern);

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
//
// While training begins, a background thread checks the whole set once for token ids outside the vocabulary.
// The next read throws the error that it finds. Each read also checks its own tokens, so that no bad id is
// ever used. Several threads may call read().
class ShardSource final : public TokenSource {
 public:
  // Opens every shard. Throws DataError if a shard is not valid, if no file matches, or if all shards
  // together are too short for one sequence.
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
  std::map<std::string, ShardMeta> metas_;  // by folder; only folders that have one
  std::vector<std::int64_t> starts_;        // stream position of each shard's first token, and the total
  std::uint64_t blocks_ = 0;                // one sequence each
  std::int64_t shifts_ = 0;                 // the shift of a shuffled epoch is in [0, shifts_)
  std::stop_source stop_;
  std::shared_future<void> check_;  // last, so that the check ends before the shards are destroyed
};

}  // namespace goat
