#include "train/progress.h"

#include <cstdio>

namespace goat {

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(seconds + 0.5);
  char text[48];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%lld h %02lld min", whole / 3600, whole / 60 % 60);
  else if (whole >= 60)
    std::snprintf(text, sizeof text, "%lld min %02lld s", whole / 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%lld s", whole);
  return text;
}

Progress::Progress(std::int64_t steps, std::int64_t interval, double tokens_per_step, double flops_per_token)
    : steps_(steps), interval_(interval), tokens_per_step_(tokens_per_step), flops_per_token_(flops_per_token) {}

void Progress::report(const StepRecord& record) {
  loss_sum_ += record.loss;
  seconds_sum_ += record.seconds;
  ++counted_;
  if (++steps_after_first_ > 0) seconds_after_first_ += record.seconds;
  const bool first = steps_after_first_ == 0, last = record.step == steps_;
  if (record.step % interval_ != 0 && !first && !last) return;

  const auto steps = static_cast<double>(counted_);
  const double tokens_per_second = steps * tokens_per_step_ / seconds_sum_;
  std::string eta;
  if (!first && !last)
    eta = "  ETA " + duration_text(seconds_after_first_ / static_cast<double>(steps_after_first_) * static_cast<double>(steps_ - record.step));
  std::printf("step %*lld/%lld %3.0f%%  loss %.4f  lr %.2e  grad norm %.3f  %.0f tokens/s  %.1f GFLOP/s%s\n",
              static_cast<int>(std::to_string(steps_).size()), static_cast<long long>(record.step), static_cast<long long>(steps_),
              100.0 * static_cast<double>(record.step) / static_cast<double>(steps_), loss_sum_ / steps, record.learning_rate, record.grad_norm,
              tokens_per_second, tokens_per_second * flops_per_token_ * 1e-9, eta.c_str());
  std::fflush(stdout);
  counted_ = 0;
  loss_sum_ = seconds_sum_ = 0;
}

}  // namespace goat
