#include "train/speed/throughput.h"

#include <cstdio>

namespace goat {

void Throughput::add(std::int64_t tokens, double seconds) {
  const bool counted = ++steps_ > warm_up_steps;
  (counted ? tokens_ : warm_up_tokens_) += tokens;
  (counted ? seconds_ : warm_up_seconds_) += seconds;
}

std::optional<double> Throughput::tokens_per_second() const {
  if (steps_ == 0) return std::nullopt;
  if (steps() == 0) return static_cast<double>(warm_up_tokens_) / warm_up_seconds_;
  return static_cast<double>(tokens_) / seconds_;
}

std::optional<double> SpeedScale::mfu(double tokens_per_second) const {
  if (!peak) return std::nullopt;
  return flops_per_second(tokens_per_second) / peak->flops_per_second;
}

std::string SpeedScale::text(double tokens_per_second) const {
  char text[96];
  std::snprintf(text, sizeof text, "%.0f tokens/s  %s", tokens_per_second,
                flops_text(flops_per_second(tokens_per_second)).c_str());
  std::string all = text;
  if (const auto share = mfu(tokens_per_second)) {
    std::snprintf(text, sizeof text, "  MFU %.1f%%", 100 * *share);
    all += text;
  }
  return all;
}

std::string flops_text(double flops_per_second) {
  const bool tera = flops_per_second >= 1e12;
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", flops_per_second * (tera ? 1e-12 : 1e-9),
                tera ? "TFLOP/s" : "GFLOP/s");
  return text;
}

}  // namespace goat
