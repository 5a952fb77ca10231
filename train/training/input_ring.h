// InputRing: a rank's share of the inputs of the next steps, read ahead by a thread into memory that the
// device reads by itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "data/token_source.h"
#include "kernels/device.h"
#include "train/replicas/on_all_ranks.h"
#include "train/training/token_loss.h"

namespace goat {

// This rank's sequences of one step: batch / N of them, for N ranks.
struct StepInputs {
  std::int64_t counted = 0;                     // number of targets that are not -1, of all ranks
  std::span<std::int32_t> inputs{}, targets{};  // [batch / N, T], memory of Device::allocate_host
  std::span<float> weights{};                   // [batch / N, T], of the targets' losses in the step's loss
};

class InputRing {
 public:
  static constexpr std::size_t slots = 3;  // one is computed, one waits, one is filled

  struct Range {
    std::int64_t first_sequence, steps;
  };
  // Reads this rank's share of the steps of `range`. A step has `batch` sequences of `length` tokens over all
  // ranks, of which rank r of N reads those from r * batch / N on; `loss` weighs the targets of all. The
  // thread starts with the first next(). For each step it posts to the other ranks what it has read, and
  // next() collects that: nothing else may be posted in `ranks`, and all ranks have the same arguments.
  // Throws std::invalid_argument if N does not divide `batch`.
  InputRing(Device& device, RankGroup& ranks, TokenSource& source, std::int64_t batch, std::int64_t length,
            Range range, TokenLoss loss = {});
  ~InputRing();

  // The inputs of the next step; waits until all ranks have read them. They stay as they are until they are
  // released. Throws what the source threw. Several ranks throw for the same step, as OnAllRanks: DataError
  // for the DataError of a rank and std::runtime_error for another exception there, beginning with that
  // rank's name. OnAllRanks<DataError> also if no target of the whole step counts in the loss. Throws the
  // same if called again, std::logic_error after the last step, and RunFailed.
  const StepInputs& next();
  // How long next() has waited for the readers, and in how many steps. The first step is not counted, since
  // nothing is read before it.
  struct Waiting {
    double seconds = 0;
    std::int64_t steps = 0;
  };
  const Waiting& waiting() const { return waiting_; }
  // The device has read the oldest inputs that next() returned.
  void release();

 private:
  struct Slot {
    StepInputs step;
    std::vector<TargetRange> answers{};  // of its sequences
    std::optional<float> weight{};       // what all of `weights` are, where the loss does not need answers
    std::exception_ptr failure{};
    bool posted = false;  // whether the other ranks hear of it
  };
  const StepInputs& take();
  std::vector<std::string> reports_for(const Slot& slot);
  bool readers_are_ahead();  // those of all ranks
  void await_reader(const Slot& slot);
  void weigh(Slot& slot, const std::vector<std::string>& reports) const;
  void read_ahead();
  void post_report(Slot& slot, std::int64_t step);
  std::string report_on(const Slot& slot, std::int64_t step) const;
  std::int64_t first_sequence(std::int64_t step) const { return range_.first_sequence + step * batch_; }
  void fill(Slot& slot, std::int64_t step);

  RankGroup& ranks_;
  TokenSource& source_;
  const std::int64_t batch_, share_;  // sequences of a step: of all ranks, of this one
  const std::size_t length_;
  const Range range_;
  const TokenLoss loss_;
  HostBuffer memory_;
  std::deque<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Numbers of steps so far: read <= released + slots, taken <= read, released <= taken.
  std::int64_t read_ = 0, taken_ = 0, released_ = 0;
  bool stop_ = false;
  Waiting waiting_;
  std::exception_ptr failure_;  // what next() threw
  std::thread reader_;
};

}  // namespace goat
