// The speed of training steps, and how it is shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/speed/device_limits.h"

namespace goat {

// The first steps of a process are no measure of its speed: memory is touched for the first time, libraries
// choose their kernels, clocks rise.
inline constexpr std::int64_t warm_up_steps = 2;

// Adds up the steps of a process; the first `warm_up_steps` are left out.
class Throughput {
 public:
  void add(std::int64_t tokens, double seconds);
  std::int64_t steps() const { return steps_ > warm_up_steps ? steps_ - warm_up_steps : 0; }  // counted
  double seconds_per_step() const { return seconds_ / static_cast<double>(steps()); }  // if any is counted
  // nullopt before the first step. As long as no step is counted, of all steps.
  std::optional<double> tokens_per_second() const;

 private:
  std::int64_t steps_ = 0, tokens_ = 0, warm_up_tokens_ = 0;
  double seconds_ = 0, warm_up_seconds_ = 0;
};

// What a speed in tokens/s means for a model.
struct SpeedScale {
  double flops_per_token = 0;  // see flops_per_token()
  std::optional<Peak> peak{};

  double flops_per_second(double tokens_per_second) const { return tokens_per_second * flops_per_token; }
  std::optional<double> mfu(double tokens_per_second) const;  // 0.4 is 40 %
  std::string text(double tokens_per_second) const;           // "446213 tokens/s  380.1 TFLOP/s  MFU 38.4%"
};

std::string flops_text(double flops_per_second);  // "12.3 GFLOP/s", "380.1 TFLOP/s"

}  // namespace goat
