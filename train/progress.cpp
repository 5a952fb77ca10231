#include "train/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace goat {

std::string duration_text(double seconds) {
  const auto whole = std::llround(seconds);
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
    : steps_(steps),
      interval_(interval),
      tokens_per_step_(tokens_per_step),
      flops_per_token_(flops_per_token),
      bar_(::isatty(STDERR_FILENO)),
      lines_(!bar_ || !::isatty(STDOUT_FILENO)) {}

void Progress::Interval::add(const StepRecord& record) {
  ++steps;
  loss += record.loss;
  seconds += record.seconds;
}

void Progress::report(const StepRecord& record) {
  since_line_.add(record);
  since_bar_.add(record);
  if (++steps_after_first_ > 0) seconds_after_first_ += record.seconds;
  const bool first = steps_after_first_ == 0, last = record.step == steps_;
  constexpr double drawing_seconds = 0.25;
  if (bar_ && (first || last || since_bar_.seconds >= drawing_seconds)) {
    draw_bar(record);
    since_bar_ = {};
  }
  if (!lines_ || (record.step % interval_ != 0 && !first && !last)) return;
  std::printf("step %s\n", text_of(record, since_line_).c_str());
  std::fflush(stdout);
  since_line_ = {};
}

std::string Progress::text_of(const StepRecord& record, const Interval& interval) const {
  const auto steps = static_cast<double>(interval.steps);
  const double tokens_per_second = steps * tokens_per_step_ / interval.seconds;
  char text[256];
  std::snprintf(text, sizeof text, "%*lld/%lld %3.0f%%  loss %.4f  lr %.2e  grad norm %.3f  %.0f tokens/s  %.1f GFLOP/s",
                static_cast<int>(std::to_string(steps_).size()), static_cast<long long>(record.step), static_cast<long long>(steps_),
                100.0 * static_cast<double>(record.step) / static_cast<double>(steps_), interval.loss / steps, record.learning_rate, record.grad_norm,
                tokens_per_second, tokens_per_second * flops_per_token_ * 1e-9);
  if (steps_after_first_ == 0 || record.step == steps_) return text;
  const double seconds_per_step = seconds_after_first_ / static_cast<double>(steps_after_first_);
  return std::string(text) + "  ETA " + duration_text(seconds_per_step * static_cast<double>(steps_ - record.step));
}

void Progress::draw_bar(const StepRecord& record) {
  constexpr std::int64_t width = 24;
  const auto filled = static_cast<std::size_t>(width * record.step / steps_);
  const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
  std::fprintf(stderr, "\r\033[K[%s] %s", bar.c_str(), text_of(record, since_bar_).c_str());
  if (record.step == steps_) std::fputc('\n', stderr);
  std::fflush(stderr);
}

void Progress::clear() {
  if (bar_) std::fputs("\r\033[K", stderr);
}

}  // namespace goat
