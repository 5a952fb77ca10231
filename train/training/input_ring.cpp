#include "train/training/input_ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "data/data_error.h"
#include "train/ranks/wire.h"
#include "train/replicas/on_all_ranks.h"

namespace goat {

namespace {
constexpr std::size_t bytes_a_token = 2 * sizeof(std::int32_t) + sizeof(float);

std::int64_t counted_in(std::span<const std::int32_t> targets) {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; });
}

// The sequences of a step that each rank reads.
std::int64_t share_of(std::int64_t batch, int ranks) {
  if (batch % ranks == 0) return batch / ranks;
  throw std::invalid_argument("InputRing: " + std::to_string(batch) + " sequences a step for " +
                              std::to_string(ranks) + " ranks, which must share them equally");
}

template <class Element>
std::span<Element> answer_in(std::span<Element> sequence, const TargetRange& answer) {
  return sequence.subspan(static_cast<std::size_t>(answer.first), static_cast<std::size_t>(answer.size()));
}

// What a rank's reader posts for a step: `read` and the counts of its share, or the text of its exception.
enum Report : char { read = 'r', data_error = 'd', other_error = 'e' };

struct Counts {
  std::int64_t first_sequence = 0;        // of the step
  std::int64_t counted = 0, answers = 0;  // targets that are not -1: all, those in the answers
};

std::string report_of(const Counts& counts) {
  std::string report(1 + sizeof counts, Report::read);
  std::memcpy(report.data() + 1, &counts, sizeof counts);
  return report;
}

// A text that is too long is cut between two characters of UTF-8.
std::string report_of(Report kind, std::string_view text) {
  std::size_t size = std::min(text.size(), most_posted - 1);
  while (size > 0 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return std::string(1, kind).append(text.substr(0, size));
}

std::string report_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const DataError& error) {
    return report_of(Report::data_error, error.what());
  } catch (const std::exception& error) {
    return report_of(Report::other_error, error.what());
  } catch (...) {
    return report_of(Report::other_error, "an exception of unknown type");
  }
}

Counts counts_of(const std::string& report, const Peer& peer) {
  const std::string text = name_of(peer) + ": " + report.substr(std::min<std::size_t>(report.size(), 1));
  if (report[0] == Report::data_error) throw OnAllRanks<DataError>(text);
  if (report[0] == Report::other_error) throw OnAllRanks<std::runtime_error>(text);
  Counts counts{};
  if (report.size() != 1 + sizeof counts)
    throw std::logic_error("InputRing: " + name_of(peer) + " posts something else");
  std::memcpy(&counts, report.data() + 1, sizeof counts);
  return counts;
}

// Of all ranks. Throws for the first that met an error.
Counts total_of(const std::vector<std::string>& reports, const std::vector<Peer>& peers,
                std::int64_t first_sequence) {
  Counts total{.first_sequence = first_sequence};
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const Counts counts = counts_of(reports[rank], peers[rank]);
    if (counts.first_sequence != first_sequence)
      throw std::logic_error("InputRing: " + name_of(peers[rank]) + " is at the step from sequence " +
                             std::to_string(counts.first_sequence) + ", this rank at that from " +
                             std::to_string(first_sequence));
    total.counted += counts.counted;
    total.answers += counts.answers;
  }
  return total;
}

}  // namespace

InputRing::InputRing(Device& device, RankGroup& ranks, TokenSource& source, std::int64_t batch,
                     std::int64_t length, Range range, TokenLoss loss)
    : ranks_(ranks),
      source_(source),
      batch_(batch),
      share_(share_of(batch, ranks.size())),
      length_(static_cast<std::size_t>(length)),
      range_(range),
      loss_(loss),
      memory_(device, slots * static_cast<std::size_t>(share_) * length_ * bytes_a_token) {
  const std::size_t tokens = static_cast<std::size_t>(share_) * length_;
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
  if (failure_) std::rethrow_exception(failure_);
  if (taken_ >= range_.steps) throw std::logic_error("InputRing: the run has no more steps");
  if (!reader_.joinable()) reader_ = std::thread([this] { read_ahead(); });
  try {
    return take();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

const StepInputs& InputRing::take() {
  Slot& slot = slots_[static_cast<std::size_t>(taken_) % slots];
  const std::vector<std::string> reports = reports_for(slot);
  if (slot.failure && ranks_.size() == 1) std::rethrow_exception(slot.failure);
  weigh(slot, reports);
  ++taken_;
  return slot.step;
}

// What all ranks report of the step in this slot.
std::vector<std::string> InputRing::reports_for(const Slot& slot) {
  const bool waits = taken_ > 0 && !readers_are_ahead();
  const auto start = std::chrono::steady_clock::now();
  await_reader(slot);
  std::vector<std::string> reports = ranks_.collect();
  if (!waits) return reports;
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  waiting_.seconds += taken.count();
  ++waiting_.steps;
  return reports;
}

bool InputRing::readers_are_ahead() {
  const std::lock_guard lock(mutex_);
  return read_ > taken_ && ranks_.collectable();
}

void InputRing::await_reader(const Slot& slot) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return read_ > taken_; });
  if (!slot.posted) std::rethrow_exception(slot.failure);
}

void InputRing::weigh(Slot& slot, const std::vector<std::string>& reports) const {
  const std::int64_t first = first_sequence(taken_);
  const Counts total = total_of(reports, ranks_.peers(), first);
  if ((loss_.needs_answers() ? total.answers : total.counted) == 0)
    throw OnAllRanks<DataError>("training sequences " + std::to_string(first) + " to " +
                                std::to_string(first + batch_ - 1) + " have no target " +
                                (loss_.needs_answers() ? "in an answer" : "that counts in the loss") +
                                "; look at the data of this step, or raise train.batch");
  slot.step.counted = total.counted;
  const auto [answer, other] = loss_.weights(total.counted, total.answers);
  if (slot.weight == other) return;
  std::ranges::fill(slot.step.weights, other);
  if (!loss_.needs_answers()) slot.weight = other;
  for (std::size_t b = 0; b < slot.answers.size(); ++b)
    std::ranges::fill(answer_in(slot.step.weights.subspan(b * length_, length_), slot.answers[b]), answer);
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
    post_report(slot, step);
    {
      const std::lock_guard lock(mutex_);
      ++read_;
    }
    changed_.notify_all();
    if (slot.failure) return;
  }
}

void InputRing::fill(Slot& slot, std::int64_t step) {
  slot.answers.clear();
  const std::int64_t first = first_sequence(step) + ranks_.rank() * share_;
  for (std::int64_t b = 0; b < share_; ++b) {
    const std::size_t offset = static_cast<std::size_t>(b) * length_;
    const auto sequence = static_cast<std::uint64_t>(first + b);
    source_.read(sequence, slot.step.inputs.subspan(offset, length_),
                 slot.step.targets.subspan(offset, length_));
    if (loss_.needs_answers()) slot.answers.push_back(source_.answer(sequence));
  }
}

void InputRing::post_report(Slot& slot, std::int64_t step) {
  slot.posted = false;
  try {
    ranks_.post(report_on(slot, step));
    slot.posted = true;
  } catch (...) {
    slot.failure = std::current_exception();
  }
}

std::string InputRing::report_on(const Slot& slot, std::int64_t step) const {
  if (slot.failure) return report_of(slot.failure);
  Counts counts{.first_sequence = first_sequence(step), .counted = counted_in(slot.step.targets)};
  for (std::size_t b = 0; b < slot.answers.size(); ++b)
    counts.answers += counted_in(answer_in(slot.step.targets.subspan(b * length_, length_), slot.answers[b]));
  return report_of(counts);
}

}  // namespace goat
