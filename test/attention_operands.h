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
  DType dtype = DType::f32;  // of q, k, v, dout, out and their gradients
  std::int64_t group = 1;    // H / H_k
  bool key_bias = false;
};

// scale = 1/sqrt(d_c); q, k, v, dout ~ N(0, 1), rounded to the dtype, and slopes uniform in (0, 0.1), rounded
// to fp32. key_bias grows from key to key by exponentially distributed steps, 0.1 in the mean.
AttentionProblem random_attention(const AttentionShape& shape, Rng& rng);

// q, k and v are parts of one tensor of T = max(T_q, T_k) rows: [B, T, H + 2 H_k, d_h], or
// [B, H + 2 H_k, T, d_h] (heads first). Rows that belong to none stay poisoned, in the operands and in the
// gradients.
enum class Layout : std::uint8_t { packed, heads_first };

class DeviceAttention {
 public:
  DeviceAttention(Device& device, const AttentionProblem& problem, std::int64_t content_dim,
                  std::int64_t lanes, DType dtype = DType::f32, Layout layout = Layout::packed);

  AttentionForward forward_operation() const;
  AttentionBackward backward_operation() const;  // with every optional output
  void forward() { device_.run(forward_operation()); }
  void backward() { device_.run(backward_operation()); }

  std::vector<double> q_gradient() const { return values_of(device_, part(dqkv, 0, t_q_)); }
  std::vector<double> k_gradient() const { return values_of(device_, part(dqkv, 1, t_k_)); }
  std::vector<double> v_gradient() const { return values_of(device_, part(dqkv, 2, t_k_)); }
  std::vector<double> unused_gradients() const;  // the elements of dqkv that belong to no row

 private:
  Tensor heads_of(const Tensor& all, int which, int dim) const;
  Tensor part(const Operand& packed, int which, std::int64_t rows) const;

  Device& device_;
  Layout layout_;
  std::int64_t t_q_, t_k_, heads_, key_heads_, content_dim_;
  float scale_;
  bool causal_, has_slope_, has_key_bias_;

 public:
  // key_bias has one column more than keys, which stays poisoned.
  Operand qkv, dqkv, slope, key_bias, out, lse, dout, delta, dq_lanes, dk_lanes, dkey_bias, dslope;
};

}  // namespace goat::test
