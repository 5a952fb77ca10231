// SlowWork: prints progress on stderr every few seconds, so that a user does not think that
// the program hangs.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace goat {

class SlowWork {
 public:
  // Prints "LABEL: 34%  12345 UNIT/s  ETA 1 min 05 s" until the object is destroyed. `total` is in units.
  SlowWork(std::string label, std::string unit, double total,
           std::chrono::milliseconds interval = std::chrono::seconds(5));

  // Reports that `units` more are done. Any thread may call it.
  void add(double units) { done_.fetch_add(units, std::memory_order_relaxed); }

 private:
  void tell() const;

  const std::string label_, unit_;
  const double total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<double> done_ = 0;
  std::jthread teller_;  // last, because it reads the other members
};

}  // namespace goat
