#include "train/training/input_ring.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "data/data_error.h"

namespace goat {

namespace {
constexpr std::size_t bytes_a_token = 2 * sizeof(std::int32_t) + sizeof(float);

std::int64_t counted_in(std::span<const std::int32_t> targets) {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; });
}
}  // namespace

InputRing::InputRing(Device& device, TokenSource& source, std::int64_t batch, std::int64_t length,
                     Range range, TokenLoss loss)
    : source_(source),
      batch_(batch),
      length_(static_cast<std::size_t>(length)),
      range_(range),
      loss_(loss),
      memory_(device, slots * static_cast<std::size_t>(batch) * length_ * bytes_a_token) {
  const std::size_t tokens = static_cast<std::size_t>(batch) * length_;
  auto* const ids = static_cast<std::int32_t*>(memory_.data());  // of all slots, then their weights
  auto* const weights = reinterpret_cast<float*>(ids + slots * 2 * tokens);
  for (std::size_t i = 0; i < slots; ++i) {
    std::int32_t* const inputs = ids + i * 2 * tokens;
    slots_.push_back({.step = {.inputs = {inputs, tokens},
                               .targets = {inputs + tokens, tokens},
                               .weights = {weights + i * tokens, tokens}}});
  }
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
  wait_for_reader(lock);
  const Slot& slot = slots_[static_cast<std::size_t>(taken_) % slots];
  if (slot.failure) std::rethrow_exception(slot.failure);
  ++taken_;
  return slot.step;
}

void InputRing::wait_for_reader(std::unique_lock<std::mutex>& lock) {
  if (read_ > taken_) return;
  const auto start = std::chrono::steady_clock::now();
  changed_.wait(lock, [this] { return read_ > taken_; });
  if (taken_ == 0) return;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  waiting_.seconds += taken.count();
  ++waiting_.steps;
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
  weigh(inputs, first);
}

void InputRing::weigh(StepInputs& inputs, std::int64_t first_sequence) const {
  const auto answer_in = [&](auto tokens, std::int64_t b) {
    const TargetRange answer = source_.answer(static_cast<std::uint64_t>(first_sequence + b));
    return tokens.subspan(static_cast<std::size_t>(b) * length_ + static_cast<std::size_t>(answer.first),
                          static_cast<std::size_t>(answer.size()));
  };
  std::int64_t answers = 0;
  for (std::int64_t b = 0; b < batch_; ++b) answers += counted_in(answer_in(inputs.targets, b));
  inputs.counted = counted_in(inputs.targets);
  if ((loss_.needs_answers() ? answers : inputs.counted) == 0)
    throw DataError("training sequences " + std::to_string(first_sequence) + " to " +
                    std::to_string(first_sequence + batch_ - 1) + " have no target " +
                    (loss_.needs_answers() ? "in an answer" : "that counts in the loss") +
                    "; look at the data of this step, or raise train.batch");
  const auto [answer, other] = loss_.weights(inputs.counted, answers);
  std::ranges::fill(inputs.weights, other);
  if (!loss_.needs_answers()) return;
  for (std::int64_t b = 0; b < batch_; ++b) std::ranges::fill(answer_in(inputs.weights, b), answer);
}

}  // namespace goat
