// SpikeFilter: limits above which a loss or gradient norm counts as a spike (train.spike_z).
#pragma once

#include <cstdint>
#include <vector>

namespace goat {

// Keeps the losses and gradient norms of the latest applied updates. The limit is their mean + z standard
// deviations. There is no limit until the window is full. Skipped updates are not added, so that neither NaN
// nor a spike changes the limits.
class SpikeFilter {
 public:
  // `values`: the window saved in a checkpoint, as alternating loss and gradient norm, oldest first.
  SpikeFilter(double z, std::int64_t window, std::vector<double> values = {});

  void add(double loss, double grad_norm);
  float loss_limit() const { return limit(0); }       // 0: none
  float grad_norm_limit() const { return limit(1); }  // 0: none
  const std::vector<double>& values() const { return values_; }

 private:
  float limit(std::size_t offset) const;

  double z_;
  std::size_t window_;
  std::vector<double> values_;
};

}  // namespace goat
