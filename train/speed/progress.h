// Progress: shows the progress of a training run to the user.
#pragma once

#include <cstdint>
#include <string>

#include "train/speed/throughput.h"

namespace goat {

struct StepRecord {
  std::int64_t step = 0;  // 1-based
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
};

// Prints lines on stdout. If stderr is a terminal, it draws a bar there instead, and prints lines as well
// only if stdout is not a terminal. Both show the mean loss and the speed since the previous line or
// drawing, and the time left. Speeds and the time left leave out the warm-up steps (throughput.h); a line
// of nothing else says "warming up".
class Progress {
 public:
  Progress(std::int64_t steps, std::int64_t interval, const SpeedScale& scale);
  // Counts the step. Prints a line after the first step, every `interval` steps, and after the last one. The
  // bar is also drawn in between, a few times a second.
  void report(const StepRecord& record);
  // Erases the bar, so that something else can be printed.
  void clear();
  const Throughput& throughput() const { return throughput_; }

 private:
  // Sums since the last line or drawing.
  struct Interval {
    std::int64_t steps = 0, tokens = 0;  // tokens: of the steps that count for the speed
    double loss = 0, seconds = 0, counted_seconds = 0;
    void add(const StepRecord& record, bool counts);
    std::string speed_text(const SpeedScale& scale) const;
    std::string loss_text() const;  // "loss 4.1234", "mean loss 4.1234" over several steps
  };
  std::string position_of(const StepRecord& record) const;  // "  50/800   6%"
  std::string eta(const StepRecord& record) const;
  void print_line(const StepRecord& record);
  void draw_bar(const StepRecord& record);

  std::int64_t steps_, interval_;
  SpeedScale scale_;
  bool bar_, lines_;
  Interval since_line_, since_bar_;
  Throughput throughput_;
};

// "1 h 02 min", "3 min 05 s", "12 s"
std::string duration_text(double seconds);

}  // namespace goat
