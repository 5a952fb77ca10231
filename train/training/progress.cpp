#include "train/training/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
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

Progress::Progress(std::int64_t steps, std::int64_t interval, double flops_per_token)
    : steps_(steps),
      interval_(interval),
      flops_per_token_(flops_per_token),
      bar_(::isatty(STDERR_FILENO)),
      lines_(!bar_ || !::isatty(STDOUT_FILENO)) {}

void Progress::Interval::add(const StepRecord& record) {
  ++steps;
  tokens += record.tokens;
  loss += record.loss;
  seconds += record.seconds;
}

void Progress::report(const StepRecord& record) {
  since_line_.add(record);
  since_bar_.add(record);
  if (++steps_after_first_ > 0) seconds_after_first_ += record.seconds;
  const bool first = steps_after_first_ == 0, last = record.step == steps_;
  constexpr double drawing_seconds = 0.25;
  if (bar_ && (first || last || since_bar_.seconds >= drawing_seconds)) draw_bar(record);
  if (lines_ && (record.step % interval_ == 0 || first || last)) print_line(record);
}

std::string Progress::Interval::loss_text() const {
  char text[48];
  std::snprintf(text, sizeof text, "%s %.4f", steps > 1 ? "mean loss" : "loss",
                loss / static_cast<double>(steps));
  return text;
}

std::string Progress::position_of(const StepRecord& record) const {
  char text[64];
  std::snprintf(text, sizeof text, "%*lld/%lld %3.0f%%", static_cast<int>(std::to_string(steps_).size()),
                static_cast<long long>(record.step), static_cast<long long>(steps_),
                100.0 * static_cast<double>(record.step) / static_cast<double>(steps_));
  return text;
}

std::string Progress::eta(const StepRecord& record) const {
  if (steps_after_first_ == 0 || record.step == steps_) return "";
  const double seconds_per_step = seconds_after_first_ / static_cast<double>(steps_after_first_);
  return "  ETA " + duration_text(seconds_per_step * static_cast<double>(steps_ - record.step));
}

void Progress::print_line(const StepRecord& record) {
  const double speed = since_line_.tokens_per_second();
  std::printf("step %s  %s  lr %.2e  grad norm %.3f  %.0f tokens/s  %.1f GFLOP/s%s\n",
              position_of(record).c_str(), since_line_.loss_text().c_str(), record.learning_rate,
              record.grad_norm, speed, speed * flops_per_token_ * 1e-9, eta(record).c_str());
  std::fflush(stdout);
  since_line_ = {};
}

// The line is cut at the terminal's width, because a wrapped line could not be overwritten. Therefore the
// most important values come first.
void Progress::draw_bar(const StepRecord& record) {
  constexpr std::int64_t width = 16;
  const auto filled = static_cast<std::size_t>(width * record.step / steps_);
  char rest[96];
  std::snprintf(rest, sizeof rest, "  %.0f tokens/s  lr %.2e  grad norm %.3f", since_bar_.tokens_per_second(),
                record.learning_rate, record.grad_norm);
  std::string line = "[" + std::string(filled, '#') + std::string(width - filled, '.') + "] " +
                     position_of(record) + "  " + since_bar_.loss_text() + eta(record) + rest;

  winsize window{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  line.resize(std::min<std::size_t>(line.size(), (known ? window.ws_col : 80) - 1));
  std::fprintf(stderr, "\r\033[K%s%s", line.c_str(), record.step == steps_ ? "\n" : "");
  std::fflush(stderr);
  since_bar_ = {};
}

void Progress::clear() {
  if (bar_) std::fputs("\r\033[K", stderr);
}

}  // namespace goat
