// Which rank has failed, as rank 0 sees it (and rank 0, as the others do). Plain arithmetic on times that the
// caller gives.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "train/ranks/wire.h"

namespace goat {

struct RankLimits {
  std::chrono::milliseconds beat_interval{1000};
  std::chrono::milliseconds heartbeat_timeout{30'000};        // without a sign of life
  std::chrono::milliseconds progress_timeout{600'000};        // without any rank's progress
  std::chrono::milliseconds long_progress_timeout{3600'000};  // while one is in a phase that may take long
};

class Judge {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Judge(std::vector<Peer> peers, const RankLimits& limits, Time now);

  void heard(int rank, Time when);  // an earlier time than the last one changes nothing
  void report(int rank, const Beat& beat, Time now);
  // To be called each beat_interval. True if this process was stopped for long (a suspended job, a debugger):
  // all limits start anew, since what the others sent in the meantime was not heard.
  bool tick(Time now);

  std::optional<Failure> silent(int rank, Time now) const;
  std::optional<Failure> stuck(Time now) const;  // no rank gets on: where each is, and which are behind
  std::string places() const;                    // rank 0: step 7, train, collective 12 of 13; rank 1: ...

 private:
  std::vector<int> behind() const;

  std::vector<Peer> peers_;
  RankLimits limits_;
  std::vector<Beat> beats_;
  std::vector<Time> heard_;
  Time progress_, tick_;
};

}  // namespace goat
