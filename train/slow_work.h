// SlowWork: a line on stderr every few seconds, so that nobody thinks that long work stands still.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace goat {

class SlowWork {
 public:
  // "LABEL: 34%  12345 UNIT/s  ETA 1 min 05 s"; `total` in units.
  SlowWork(std::string label, std::string unit, double total,
           std::chrono::duration<double> interval = std::chrono::seconds(5));

  // So much more is done. Any thread may call it.
  void add(double units);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_, unit_;
  const double total_;
  const std::chrono::duration<double> interval_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  double done_ = 0;
  Clock::time_point shown_ = start_;
};

}  // namespace goat
