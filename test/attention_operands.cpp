#include "test/attention_operands.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace goat::test {

namespace {
using Index = std::int64_t;

Index all_heads(const AttentionProblem& problem) { return problem.heads + 2 * problem.key_heads(); }

Operand three(Device& device, const AttentionProblem& problem, DType dtype, Layout layout, const char* name) {
  const Index rows = std::max(problem.t_q, problem.t_k);
  if (layout == Layout::packed)
    return {device, dtype, {problem.batch, rows, all_heads(problem), problem.head_dim}, name};
  return {device, dtype, {problem.batch, all_heads(problem), rows, problem.head_dim}, name};
}

std::vector<double> packed_values(const AttentionProblem& problem, Layout layout) {
  const Index rows = std::max(problem.t_q, problem.t_k), all = all_heads(problem), width = problem.head_dim;
  std::vector<double> packed(problem.batch * rows * all * width, std::numeric_limits<double>::quiet_NaN());
  const auto place = [&](const std::vector<double>& values, Index length, Index first_head, Index heads) {
    for (Index b = 0; b < problem.batch; ++b)
      for (Index t = 0; t < length; ++t)
        for (Index h = 0; h < heads; ++h) {
          const Index head = first_head + h, to = layout == Layout::packed ? (b * rows + t) * all + head
                                                                           : (b * all + head) * rows + t;
          std::copy_n(values.begin() + ((b * length + t) * heads + h) * width, width,
                      packed.begin() + to * width);
        }
  };
  place(problem.q, problem.t_q, 0, problem.heads);
  place(problem.k, problem.t_k, problem.heads, problem.key_heads());
  place(problem.v, problem.t_k, problem.heads + problem.key_heads(), problem.key_heads());
  return packed;
}
}  // namespace

AttentionProblem random_attention(const AttentionShape& shape, Rng& rng) {
  AttentionProblem problem;
  problem.batch = shape.batch;
  problem.t_q = shape.t_q;
  problem.t_k = shape.t_k;
  problem.heads = shape.heads;
  problem.head_dim = shape.head_dim;
  problem.causal = shape.causal;
  problem.scale = 1 / std::sqrt(static_cast<float>(shape.content_dim));
  std::normal_distribution<float> normal;
  problem.group = shape.group;
  const auto fill = [&](std::vector<double>& values, Index rows, Index heads) {
    values.resize(shape.batch * rows * heads * shape.head_dim);
    for (double& value : values) value = rounded_to(shape.dtype, normal(rng));
  };
  fill(problem.q, shape.t_q, shape.heads);
  fill(problem.k, shape.t_k, problem.key_heads());
  fill(problem.v, shape.t_k, problem.key_heads());
  fill(problem.dout, shape.t_q, shape.heads);
  std::uniform_real_distribution<float> slope(0, 0.1f);
  for (Index h = 0; shape.slope && h < shape.heads; ++h) problem.slope.push_back(slope(rng));
  std::exponential_distribution<double> step(10);
  for (Index row = 0; shape.key_bias && row < shape.batch * shape.heads; ++row) {
    double bias = 0;
    for (Index j = 0; j < shape.t_k; ++j) problem.key_bias.push_back(bias += step(rng));
  }
  return problem;
}

DeviceAttention::DeviceAttention(Device& device, const AttentionProblem& problem, Index content_dim,
                                 Index lanes, DType dtype, Layout layout)
    : device_(device),
      layout_(layout),
      t_q_(problem.t_q),
      t_k_(problem.t_k),
      heads_(problem.heads),
      key_heads_(problem.key_heads()),
      content_dim_(content_dim),
      scale_(static_cast<float>(problem.scale)),
      causal_(problem.causal),
      has_slope_(!problem.slope.empty()),
      has_key_bias_(!problem.key_bias.empty()),
      qkv(three(device, problem, dtype, layout, "qkv")),
      dqkv(three(device, problem, dtype, layout, "dqkv")),
      slope(device, DType::f32, {problem.heads}, "slope"),
      key_bias(device, DType::f64, {problem.batch, problem.heads, problem.t_k + 1}, "key_bias"),
      out(device, dtype, {problem.batch, problem.t_q, problem.heads, problem.head_dim}, "out"),
      lse(device, DType::f32, {problem.batch, problem.heads, problem.t_q}, "lse"),
      dout(device, dtype, {problem.batch, problem.t_q, problem.heads, problem.head_dim}, "dout"),
      delta(device, DType::f32, {problem.batch, problem.heads, problem.t_q}, "delta"),
      dq_lanes(device, DType::f32, {problem.batch, problem.heads, problem.t_q, lanes}, "dq_lanes"),
      dk_lanes(device, DType::f32, {problem.batch, problem.key_heads(), problem.t_k, lanes}, "dk_lanes"),
      dkey_bias(device, DType::f32, {problem.batch, problem.heads, problem.t_k}, "dkey_bias"),
      dslope(device, DType::f32, {problem.batch, problem.heads, problem.t_k}, "dslope") {
  qkv.set(packed_values(problem, layout));
  if (!problem.slope.empty()) slope.set(problem.slope);
  if (!problem.dout.empty()) dout.set(problem.dout);
  if (!has_key_bias_) return;
  std::vector<double> columns;
  for (Index row = 0; row < problem.batch * problem.heads; ++row) {
    columns.insert(columns.end(), problem.key_bias.begin() + row * t_k_,
                   problem.key_bias.begin() + (row + 1) * t_k_);
    columns.push_back(std::numeric_limits<double>::quiet_NaN());
  }
  key_bias.set(columns);
}

// The heads of q (0), k (1) or v (2) of a tensor of all heads, whose dimension of heads is `dim`.
Tensor DeviceAttention::heads_of(const Tensor& all, int which, int dim) const {
  if (which == 0) return all.slice(dim, 0, heads_);
  return all.slice(dim, heads_ + (which - 1) * key_heads_, key_heads_);
}

Tensor DeviceAttention::part(const Operand& packed, int which, Index rows) const {
  if (layout_ == Layout::packed) return heads_of(packed.tensor(), which, 2).slice(1, 0, rows);
  Tensor view = heads_of(packed.tensor(), which, 1).slice(2, 0, rows);  // [B, heads, T, d_h]
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.stride[1], view.stride[2]);
  return view;
}

std::vector<double> DeviceAttention::unused_gradients() const {
  const int row_dim = layout_ == Layout::packed ? 1 : 2, head_dim = layout_ == Layout::packed ? 2 : 1;
  std::vector<double> unused;
  for (int which = 0; which < 3; ++which) {
    const Index rows = dqkv.tensor().shape[row_dim], used = which == 0 ? t_q_ : t_k_;
    const Tensor beyond = heads_of(dqkv.tensor().slice(row_dim, used, rows - used), which, head_dim);
    const std::vector<double> values = values_of(device_, beyond);
    unused.insert(unused.end(), values.begin(), values.end());
  }
  return unused;
}

AttentionForward DeviceAttention::forward_operation() const {
  AttentionForward op;
  op.out = out;
  op.lse = lse;
  op.q = part(qkv, 0, t_q_);
  op.k = part(qkv, 1, t_k_);
  op.v = part(qkv, 2, t_k_);
  if (has_slope_) op.slope = slope;
  if (has_key_bias_) op.key_bias = key_bias.tensor().slice(2, 0, t_k_);
  op.scale = scale_;
  op.causal = causal_;
  return op;
}

AttentionBackward DeviceAttention::backward_operation() const {
  const AttentionForward forward_op = forward_operation();
  AttentionBackward op;
  op.dq = part(dqkv, 0, t_q_);
  op.dk = part(dqkv, 1, t_k_);
  op.dv = part(dqkv, 2, t_k_);
  if (dq_lanes.tensor().shape[3] > 0) op.dq_lanes = dq_lanes, op.dk_lanes = dk_lanes;
  op.dkey_bias = dkey_bias;
  op.dslope = dslope;
  op.delta = delta;
  op.dout = dout;
  op.out = out;
  op.lse = lse;
  op.q = forward_op.q;
  op.k = forward_op.k;
  op.v = forward_op.v;
  op.slope = forward_op.slope;
  op.key_bias = forward_op.key_bias;
  op.scale = forward_op.scale;
  op.causal = forward_op.causal;
  op.content_dim = content_dim_;
  return op;
}

}  // namespace goat::test
