#include "train/ranks/judge.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace goat {

namespace {

std::string seconds(std::chrono::milliseconds time) {
  return time.count() % 1000 ? std::to_string(time.count()) + " ms"
                             : std::to_string(time.count() / 1000) + " s";
}

}  // namespace

Judge::Judge(std::vector<Peer> peers, const RankLimits& limits, Time now)
    : peers_(std::move(peers)),
      limits_(limits),
      beats_(peers_.size()),
      heard_(peers_.size(), now),
      progress_(now),
      tick_(now) {}

void Judge::heard(int rank, Time now) {
  Time& last = heard_[static_cast<std::size_t>(rank)];
  last = std::max(last, now);
}

void Judge::report(int rank, const Beat& beat, Time now) {
  heard(rank, now);
  Beat& last = beats_[static_cast<std::size_t>(rank)];
  if (last == beat) return;
  last = beat;
  progress_ = now;
}

bool Judge::tick(Time now) {
  const bool stopped = now - tick_ > limits_.heartbeat_timeout / 2;
  tick_ = now;
  if (!stopped) return false;
  std::fill(heard_.begin(), heard_.end(), now);
  progress_ = now;
  return true;
}

std::optional<Failure> Judge::silent(int rank, Time now) const {
  if (now - heard_[static_cast<std::size_t>(rank)] <= limits_.heartbeat_timeout) return std::nullopt;
  return Failure{rank, name_of(peers_[static_cast<std::size_t>(rank)]) + " has given no sign of life for " +
                           seconds(limits_.heartbeat_timeout) + " (stopped, or its host or network is gone)"};
}

std::optional<Failure> Judge::stuck(Time now) const {
  const bool slow =
      std::any_of(beats_.begin(), beats_.end(), [](const Beat& beat) { return beat.may_take_long; });
  const auto limit = slow ? limits_.long_progress_timeout : limits_.progress_timeout;
  if (now - progress_ <= limit) return std::nullopt;
  const std::vector<int> late = behind();
  std::string reason = "no rank has got on for " + seconds(limit) + ": " + places();
  if (!late.empty()) reason += "; " + list_of(late) + (late.size() == 1 ? " is" : " are") + " behind";
  return Failure{late.size() == 1 ? late.front() : -1, reason};
}

std::string Judge::places() const {
  constexpr std::size_t most = 64;
  std::string text;
  for (std::size_t rank = 0; rank < std::min(most, beats_.size()); ++rank) {
    const Beat& beat = beats_[rank];
    text += (rank ? "; " : "") + name_of(peers_[rank]) + " step " + std::to_string(beat.step) + ", " +
            beat.phase + ", collective " + std::to_string(beat.finished) + " of " +
            std::to_string(beat.enqueued);
  }
  return text + (beats_.size() > most ? "; ..." : "");
}

// The ranks that the others wait for: those with the fewest steps, then with the fewest collectives enqueued,
// then finished. None if all are equal.
std::vector<int> Judge::behind() const {
  const auto place = [](const Beat& beat) { return std::tuple(beat.step, beat.enqueued, beat.finished); };
  const auto [least, most] = std::minmax_element(
      beats_.begin(), beats_.end(), [&](const Beat& a, const Beat& b) { return place(a) < place(b); });
  std::vector<int> ranks;
  if (place(*least) == place(*most)) return ranks;
  for (std::size_t rank = 0; rank < beats_.size(); ++rank)
    if (place(beats_[rank]) == place(*least)) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

}  // namespace goat
