// TokenSource: the interface of training and validation data.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/data_error.h"
#include "data/shard_record.h"

namespace goat {

// The targets first .. end - 1 of a sequence.
struct TargetRange {
  std::int64_t first = 0;
  std::int64_t end = 0;
  bool empty() const { return first >= end; }
  std::int64_t size() const { return empty() ? 0 : end - first; }
  bool operator==(const TargetRange&) const = default;
};

// Sequence `index` depends only on the source's options and on `index`. It is the same for any number of
// ranks, and the whole state of a loader is a counter.
class TokenSource {
 public:
  static constexpr std::uint64_t endless = std::numeric_limits<std::uint64_t>::max();

  virtual ~TokenSource() = default;
  virtual std::string description() const = 0;  // one line for the log
  // Number of sequences in one pass over the data (an epoch); `endless` for generated tasks.
  virtual std::uint64_t sequences() const = 0;
  // Writes the T inputs and T targets of sequence `index`. A target of -1 is not counted in the
  // loss. Throws DataError.
  virtual void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) = 0;
  // The targets of sequence `index` that hold the answer of its task. Empty if the data ask for none; then
  // all sequences have none.
  virtual TargetRange answer(std::uint64_t) const { return {}; }
  // Waits for the background check of all data, if there is one. Throws DataError for what it found.
  virtual void finish_check() const {}
  // Identifies the data: a record of each shard, in order. Empty for generated tasks. Throws DataError.
  virtual std::vector<ShardRecord> shards() const { return {}; }
  // What the other ranks need to open the same data without reading every file: rank 0 gives it to them as
  // the option `scan`. Empty for generated tasks. Throws DataError.
  virtual std::string scan() const { return ""; }
  // The tokenizer that made the tokens ("bytes", "gpt2"), as stated beside the data. Empty if
  // nothing is stated.
  virtual std::string tokenizer() const { return ""; }
  // The sha256 of that tokenizer, where the name alone does not tell it ("tokenizer.json"). Otherwise empty.
  virtual std::string tokenizer_sha256() const { return ""; }
  // What the user should know about the data before training on them; each note is a sentence.
  virtual std::vector<std::string> notes() const { return {}; }
  // What a run of so many sequences takes from each part of the data, for the user; a line each. Empty if
  // there are no parts.
  virtual std::vector<std::string> shares(std::uint64_t /*sequences*/) const { return {}; }
  // Mean loss, in nats per token, of the best possible predictor, if it is known for the task.
  virtual std::optional<double> bayes_optimal_loss() const { return std::nullopt; }
};

// Throws std::invalid_argument unless both spans have the length of a sequence.
inline void require_length(const std::string& source, std::int64_t length,
                           std::span<const std::int32_t> inputs, std::span<const std::int32_t> targets) {
  if (std::ssize(inputs) == length && std::ssize(targets) == length) return;
  throw std::invalid_argument(source + "::read: spans of " + std::to_string(inputs.size()) + " and " +
                              std::to_string(targets.size()) + " tokens, sequences have " +
                              std::to_string(length));
}

}  // namespace goat
