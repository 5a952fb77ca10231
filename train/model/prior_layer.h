// PriorLayer: the learnable attention prior of one layer (goat.md). It writes the lanes of q and k, provides
// the slope, and computes the gradients of the prior's parameters.
#pragma once

#include "train/model/block.h"

namespace goat {

class PriorLayer {
 public:
  PriorLayer(const Config& config, const ParameterSet& parameters, const std::string& prefix);
  void plan(const std::string& prefix, BatchShape shape, MemoryPlan& memory);

  // Writes coordinates d_c.. of q and k [B, T, H, d_h] in place. Row t is at position
  // shared.first_position + t.
  void forward(Device& device, const SharedBuffers& shared, const Tensor& q, const Tensor& k, float scale);
  // f32 [H]; absent if recency is off. Valid after forward.
  Tensor slope() const;
  // Adds to the parameters' gradients from shared.dq_lanes, dk_lanes, dkey_bias, dslope.
  void backward(Device& device, SharedBuffers& shared) const;

 private:
  // Computes key_bias_, fourier_ and softplus_slope_ from the weights.
  void fill_tables(Device& device, const SharedBuffers& shared);

  std::int64_t content_dim_, heads_;
  bool tables_filled_ = false;
  const Parameter *alpha_, *beta_, *bump_, *w1_, *b1_, *w2_;
  const Parameter* frequency_ = nullptr;  // learned frequencies only
  const Parameter* lambda_ = nullptr;     // the slope itself, if recency = free
  const Parameter* rho_ = nullptr;        // slope = softplus(rho), if recency = softplus
  Tensor key_bias_, hidden_;              // f32 [H, T] and [T, n]; T is T_max with a KV cache
  Tensor fourier_;                        // f32 [T, R, 2], learned frequencies only
  Tensor softplus_slope_;                 // f32 [H], softplus only
};

}  // namespace goat
