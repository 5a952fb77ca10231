// Progress: shows the progress of a training run to the user.
#pragma once

#include <cstdint>
#include <string>

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
// drawing, and the time left. That estimate leaves out the first step, which is slower because of page
// faults and library set-up.
class Progress {
 public:
  Progress(std::int64_t steps, std::int64_t interval, double flops_per_token);
  // Counts the step. Prints a line after the first step, every `interval` steps, and after the last one. The
  // bar is also drawn in between, a few times a second.
  void report(const StepRecord& record);
  // Erases the bar, so that something else can be printed.
  void clear();

 private:
  // Sums since the last line or drawing.
  struct Interval {
    std::int64_t steps = 0, tokens = 0;
    double loss = 0, seconds = 0;
    void add(const StepRecord& record);
    double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
    std::string loss_text() const;  // "loss 4.1234", "mean loss 4.1234" over several steps
  };
  std::string position_of(const StepRecord& record) const;  // "  50/800   6%"
  std::string eta(const StepRecord& record) const;
  void print_line(const StepRecord& record);
  void draw_bar(const StepRecord& record);

  std::int64_t steps_, interval_;
  double flops_per_token_;
  bool bar_, lines_;
  Interval since_line_, since_bar_;
  std::int64_t steps_after_first_ = -1;
  double seconds_after_first_ = 0;
};

// "1 h 02 min", "3 min 05 s", "12 s"
std::string duration_text(double seconds);

}  // namespace goat
