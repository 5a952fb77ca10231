// TokenSource: where training and validation sequences come from.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/data_error.h"
#include "data/shard_record.h"

namespace goat {

// Sequence `index` is a pure function of the source's options and `index`: the same whatever the rank count,
// and a loader's whole state is a counter.
class TokenSource {
 public:
  static constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();

  virtual ~TokenSource() = default;
  virtual std::string description() const = 0;  // one line for the log
  // Sequences in one pass over the data (an epoch); `endless` for generated tasks.
  virtual std::uint64_t sequences() const = 0;
  // Writes the T inputs and T targets (-1: not counted in the loss) of sequence `index`. Throws DataError.
  virtual void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) = 0;
  // Waits for a check of all the data that goes on in the background, where there is one. Throws DataError
  // for what it found.
  virtual void finish_check() const {}
  // What tells the data from others: a record of each shard, in order; empty for generated tasks. Throws
  // DataError.
  virtual std::vector<ShardRecord> shards() const { return {}; }
  // The tokenizer that made the tokens ("bytes", "gpt2"), as the data say; empty where they do not.
  virtual std::string tokenizer() const { return ""; }
  // What a person should know about the data before training on them, a sentence each.
  virtual std::vector<std::string> notes() const { return {}; }
  // Mean loss, in nats a token, of the best possible predictor, where the task has a known one.
  virtual std::optional<double> bayes_optimal_loss() const { return std::nullopt; }
};

}  // namespace goat
