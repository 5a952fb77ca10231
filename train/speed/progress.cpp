#include "train/speed/progress.h"

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

Progress::Progress(std::int64_t steps, std::int64_t interval, const SpeedScale& scale)
    : steps_(steps),
      interval_(interval),
      scale_(scale),
      bar_(::isatty(STDERR_FILENO)),
      lines_(!bar_ || !::isatty(STDOUT_FILENO)) {}

void Progress::Interval::add(const StepRecord& record, bool counts) {
  ++steps;
  loss += record.loss;
  seconds += record.seconds;
  if (!counts) return;
  tokens += record.tokens;
  counted_seconds += record.seconds;
}

void Progress::report(const StepRecord& record) {
  const bool first = !throughput_.tokens_per_second(), last = record.step == steps_;
  throughput_.add(record.tokens, record.seconds);
  since_line_.add(record, throughput_.steps() > 0);
  since_bar_.add(record, throughput_.steps() > 0);
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

std::string Progress::Interval::speed_text(const SpeedScale& scale) const {
  return tokens > 0 ? scale.text(static_cast<double>(tokens) / counted_seconds) : "warming up";
}

std::string Progress::position_of(const StepRecord& record) const {
  char text[64];
  std::snprintf(text, sizeof text, "%*lld/%lld %3.0f%%", static_cast<int>(std::to_string(steps_).size()),
                static_cast<long long>(record.step), static_cast<long long>(steps_),
                100.0 * static_cast<double>(record.step) / static_cast<double>(steps_));
  return text;
}

std::string Progress::eta(const StepRecord& record) const {
  if (throughput_.steps() == 0 || record.step == steps_) return "";
  return "  ETA " + duration_text(throughput_.seconds_per_step() * static_cast<double>(steps_ - record.step));
}

void Progress::print_line(const StepRecord& record) {
  std::printf("step %s  %s  lr %.2e  grad norm %.3f  %s%s\n", position_of(record).c_str(),
              since_line_.loss_text().c_str(), record.learning_rate, record.grad_norm,
              since_line_.speed_text(scale_).c_str(), eta(record).c_str());
  std::fflush(stdout);
  since_line_ = {};
}

// The line is cut at the terminal's width, because a wrapped line could not be overwritten. Therefore the
// most important values come first.
void Progress::draw_bar(const StepRecord& record) {
  constexpr std::int64_t width = 16;
  const auto filled = static_cast<std::size_t>(width * record.step / steps_);
  char rest[160];
  std::snprintf(rest, sizeof rest, "  %s  lr %.2e  grad norm %.3f", since_bar_.speed_text(scale_).c_str(),
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
