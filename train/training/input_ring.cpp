#include "train/training/input_ring.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "data/data_error.h"

namespace goat {

InputRing::InputRing(Device& device, TokenSource& source, std::int64_t batch, std::int64_t length,
                     Range range)
    : source_(source),
      batch_(batch),
      length_(static_cast<std::size_t>(length)),
      range_(range),
      memory_(device, slots * 2 * static_cast<std::size_t>(batch) * length_ * sizeof(std::int32_t)) {
  const std::size_t tokens = static_cast<std::size_t>(batch) * length_;
  auto* next = static_cast<std::int32_t*>(memory_.data());
  for (std::size_t i = 0; i < slots; ++i, next += 2 * tokens)
    slots_.push_back({.step = {.inputs = {next, tokens}, .targets = {next + tokens, tokens}}});
}

InputRing::~InputRing() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (reader_.joinable()) reader_.join();
}

const StepInputs& InputRing::next() {
  if (taken_ >= range_.steps) throw std::logic_error("InputRing: the run has no more steps");
  if (!reader_.joinable()) reader_ = std::thread([this] { read_ahead(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return read_ > taken_; });
  const Slot& slot = slots_[static_cast<std::size_t>(taken_) % slots];
  if (slot.failure) std::rethrow_exception(slot.failure);
  ++taken_;
  return slot.step;
}

void InputRing::release() {
  {
    const std::lock_guard lock(mutex_);
    ++released_;
  }
  changed_.notify_all();
}

void InputRing::read_ahead() {
  for (std::int64_t step = 0; step < range_.steps; ++step) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || step < released_ + static_cast<std::int64_t>(slots); });
      if (stop_) return;
    }
    Slot& slot = slots_[static_cast<std::size_t>(step) % slots];
    try {
      fill(slot, step);
    } catch (...) {
      slot.failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      ++read_;
    }
    changed_.notify_all();
    if (slot.failure) return;
  }
}

void InputRing::fill(Slot& slot, std::int64_t step) {
  StepInputs& inputs = slot.step;
  const std::int64_t first = range_.first_sequence + step * batch_;
  for (std::int64_t b = 0; b < batch_; ++b) {
    const std::size_t offset = static_cast<std::size_t>(b) * length_;
    source_.read(static_cast<std::uint64_t>(first + b), inputs.inputs.subspan(offset, length_),
                 inputs.targets.subspan(offset, length_));
  }
  inputs.counted = std::ranges::count_if(inputs.targets, [](std::int32_t target) { return target >= 0; });
  if (inputs.counted == 0)
    throw DataError("training sequences " + std::to_string(first) + " to " +
                    std::to_string(first + batch_ - 1) +
                    " have no target that counts in the loss; look at the data of this step, or raise "
                    "train.batch");
}

}  // namespace goat
