#include "train/slow_work.h"

#include <cstdio>
#include <utility>

#include "train/progress.h"

namespace goat {

SlowWork::SlowWork(std::string label, std::string unit, double total, std::chrono::duration<double> interval)
    : label_(std::move(label)), unit_(std::move(unit)), total_(total), interval_(interval) {}

void SlowWork::add(double units) {
  const std::lock_guard lock(mutex_);
  done_ += units;
  const Clock::time_point now = Clock::now();
  if (now - shown_ < interval_ || done_ >= total_) return;
  shown_ = now;
  const double rate = done_ / std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "%s: %.0f%%  %.0f %s/s  ETA %s\n", label_.c_str(), 100 * done_ / total_, rate,
               unit_.c_str(), duration_text((total_ - done_) / rate).c_str());
}

}  // namespace goat
