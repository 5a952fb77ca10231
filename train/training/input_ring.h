// InputRing: the inputs of the next steps, read ahead by a thread into memory that the device reads by
// itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include "data/token_source.h"
#include "kernels/device.h"
#include "train/training/token_loss.h"

namespace goat {

// The sequences of one step.
struct StepInputs {
  std::int64_t counted = 0;                     // number of targets that are not -1
  std::span<std::int32_t> inputs{}, targets{};  // [batch, T], memory of Device::allocate_host
  std::span<float> weights{};                   // [batch, T], of the targets' losses in the step's loss
};

class InputRing {
 public:
  static constexpr std::size_t slots = 3;  // one is computed, one waits, one is filled

  struct Range {
    std::int64_t first_sequence, steps;
  };
  // Reads the steps of `range`, each of `batch` sequences of `length` tokens, whose targets `loss` weighs.
  // The thread starts with the first next().
  InputRing(Device& device, TokenSource& source, std::int64_t batch, std::int64_t length, Range range,
            TokenLoss loss = {});
  ~InputRing();

  // The inputs of the next step; waits until they are read. They stay as they are until they are released.
  // Throws what the source threw for this step, and DataError if no target of it counts in the loss; again,
  // if called again. Throws std::logic_error after the last step.
  const StepInputs& next();
  // How long next() has waited for the reader, and in how many steps. The first step is not counted, since
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
    std::exception_ptr failure{};
  };
  void wait_for_reader(std::unique_lock<std::mutex>& lock);
  void read_ahead();
  void fill(Slot& slot, std::int64_t step);
  void weigh(StepInputs& inputs, std::int64_t first_sequence) const;

  TokenSource& source_;
  const std::int64_t batch_;
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
  std::thread reader_;
};

}  // namespace goat
