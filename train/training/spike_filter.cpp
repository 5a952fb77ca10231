#include "train/training/spike_filter.h"

#include <cmath>
#include <utility>

namespace goat {

SpikeFilter::SpikeFilter(double z, std::int64_t window, std::vector<double> values)
    : z_(z), window_(static_cast<std::size_t>(window)), values_(std::move(values)) {}

void SpikeFilter::add(double loss, double grad_norm) {
  if (z_ == 0 || !std::isfinite(loss) || !std::isfinite(grad_norm)) return;
  values_.push_back(loss);
  values_.push_back(grad_norm);
  if (values_.size() > 2 * window_)
    values_.erase(values_.begin(), values_.end() - static_cast<std::ptrdiff_t>(2 * window_));
}

float SpikeFilter::limit(std::size_t offset) const {
  if (z_ == 0 || values_.size() < 2 * window_) return 0;
  double mean = 0, variance = 0;
  const std::size_t first = values_.size() - 2 * window_;
  for (std::size_t i = first + offset; i < values_.size(); i += 2)
    mean += values_[i] / static_cast<double>(window_);
  for (std::size_t i = first + offset; i < values_.size(); i += 2)
    variance += (values_[i] - mean) * (values_[i] - mean) / static_cast<double>(window_);
  return static_cast<float>(mean + z_ * std::sqrt(variance));
}

}  // namespace goat
