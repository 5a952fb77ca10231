// What the tests of InputRing read: a source of sequences that are known, whose reads can fail and wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/ranks/rank_group.h"
#include "train/training/input_ring.h"

namespace goat::test {

inline std::int32_t input_at(std::uint64_t sequence, std::size_t t) {
  return static_cast<std::int32_t>(100 * sequence + t);
}
// Sequence i has i % 4 targets that count.
inline std::int32_t target_at(std::uint64_t sequence, std::size_t t) {
  return t < sequence % 4 ? input_at(sequence, t) + 50 : -1;
}

// The answer of sequence i: its targets 1 .. i % 5 - 1, whether they count or not.
inline TargetRange answer_of(std::uint64_t sequence) { return {1, static_cast<std::int64_t>(sequence % 5)}; }

// The ring of a run with one rank.
struct LoneRank {
  RankGroup group{Launch{}, {}};
};
struct LoneRing : LoneRank, InputRing {
  LoneRing(Device& device, TokenSource& source, std::int64_t sequences, std::int64_t tokens, Range range,
           TokenLoss loss = {})
      : InputRing(device, group, source, sequences, tokens, range, loss) {}
};

// Notes the sequences that are read. Reads wait while the gate is closed.
class FabricatedSource final : public TokenSource {
 public:
  std::function<void(std::uint64_t)> failure = [](std::uint64_t) {};  // throws for the sequences that fail
  bool counts = true;                                                 // whether any target counts
  bool masked = true;                                                 // whether some do not
  bool answers = true;                                                // whether there are answers

  std::string description() const override { return "fabricated"; }
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    std::unique_lock lock(mutex_);
    read_.push_back(index);
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    failure(index);
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      inputs[t] = input_at(index, t);
      targets[t] = !masked ? 7 : counts ? target_at(index, t) : -1;
    }
  }

  TargetRange answer(std::uint64_t index) const override {
    return answers ? answer_of(index) : TargetRange{};
  }

  void set_open(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    changed_.notify_all();
  }
  // Whether that many reads have begun, within a time that only a reader which has stopped needs.
  bool await_reads(std::int64_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return std::ssize(read_) >= count; });
  }
  std::vector<std::uint64_t> read_so_far() {
    const std::lock_guard lock(mutex_);
    return read_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> read_;
  bool open_ = true;
};

inline std::vector<std::uint64_t> numbers(std::uint64_t first, std::int64_t count) {
  std::vector<std::uint64_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(first + static_cast<std::uint64_t>(i));
  return all;
}

inline TokenLoss loss_of(const char* name, double span_weight) {
  Config::Train train;
  train.loss = name;
  train.span_weight = span_weight;
  return TokenLoss(train);
}

}  // namespace goat::test
