#include "train/speed/slow_work.h"

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <utility>

#include "train/speed/progress.h"

namespace goat {

SlowWork::SlowWork(std::string label, std::string unit, double total, std::chrono::milliseconds interval)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      teller_([this, interval](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any condition;
        std::unique_lock lock(mutex);
        while (!condition.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) tell();
      }) {}

void SlowWork::tell() const {
  const double done = done_.load(std::memory_order_relaxed);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  const double rate = done / passed.count();
  std::fprintf(stderr, "%s: %.0f%%  %.0f %s/s%s\n", label_.c_str(), 100 * done / total_, rate, unit_.c_str(),
               done > 0 ? ("  ETA " + duration_text((total_ - done) / rate)).c_str() : "");
}

}  // namespace goat
