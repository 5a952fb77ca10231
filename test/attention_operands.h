// A problem of attention_oracle.h on a device: packed, strided and poisoned as the trainer's activations are.
#pragma once

#include "kernels/device.h"
#include "test/attention_oracle.h"
#include "test/operand.h"

namespace goat::test {

struct AttentionShape {
  std::int64_t batch, t_q, t_k, heads, head_dim;
  std::int64_t content_dim, lanes;  // d_c and 2R
  bool causal, slope;
};

// scale = 1/sqrt(d_c); q, k, v, dout ~ N(0, 1) and slopes uniform in (0, 0.1), rounded to fp32.
AttentionProblem random_attention(const AttentionShape& shape, Rng& rng);

// q, k and v are parts of one [B, max(T_q, T_k), 3, H, d_h]; rows that belong to none stay poisoned, in the operands and in the gradients.
class DeviceAttention {
 public:
  DeviceAttention(Device& device, const AttentionProblem& problem, std::int64_t content_dim, std::int64_t lanes);

  AttentionForward forward_operation() const;
  AttentionBackward backward_operation() const;  // with every optional output
  void forward() { device_.run(forward_operation()); }
  void backward() { device_.run(backward_operation()); }

  std::vector<double> q_gradient() const { return values_of(device_, part(dqkv, 0, t_q_)); }
  std::vector<double> k_gradient() const { return values_of(device_, part(dqkv, 1, t_k_)); }
  std::vector<double> v_gradient() const { return values_of(device_, part(dqkv, 2, t_k_)); }

 private:
  static Tensor part(const Operand& packed, int which, std::int64_t rows) { return packed.tensor().select(2, which).slice(1, 0, rows); }

  Device& device_;
  std::int64_t t_q_, t_k_, content_dim_;
  float scale_;
  bool causal_, has_slope_;

 public:
  Operand qkv, dqkv, slope, out, lse, dout, delta, dq_lanes, dk_lanes, dkey_bias, dslope;
};

}  // namespace goat::test
