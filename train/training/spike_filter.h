// SpikeFilter: which loss and gradient norm are too far from the latest ones to be trusted (train.spike_z).
#pragma once

#include <cstdint>
#include <vector>

namespace goat {

// A window of the losses and gradient norms of applied updates. The limit is mean + z standard deviations of
// the window, and none until the window is full. What was skipped never enters, so that neither a NaN nor a
// spike moves the limits.
class SpikeFilter {
 public:
  // The window of a checkpoint: alternating loss and gradient norm, oldest first.
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
