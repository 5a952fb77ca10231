// Progress: the lines a person watches while a run trains.
#pragma once

#include <cstdint>
#include <string>

namespace goat {

struct StepRecord {
  std::int64_t step = 0;  // 1-based
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  double seconds = 0;
};

class Progress {
 public:
  Progress(std::int64_t steps, std::int64_t interval, double tokens_per_step, double flops_per_token);
  // Counts the step; prints a line at the first step, every `interval` steps and the last one: mean loss and speed since the previous line, time left
  // (the first step, which pays for page faults and library set-up, is left out of the estimate).
  void report(const StepRecord& record);

 private:
  std::int64_t steps_, interval_;
  double tokens_per_step_, flops_per_token_;
  std::int64_t counted_ = 0;  // steps since the previous line, their summed loss and time
  double loss_sum_ = 0, seconds_sum_ = 0;
  double seconds_after_first_ = 0;
  std::int64_t steps_after_first_ = -1;
};

// "1 h 02 min", "3 min 05 s", "12 s"
std::string duration_text(double seconds);

}  // namespace goat
