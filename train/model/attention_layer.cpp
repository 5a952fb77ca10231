#include "train/model/attention_layer.h"

#include <cmath>
#include <stdexcept>

namespace goat {

float content_scale(const Config& config) {
  if (config.model.attn_scale == "none") return 1.0f;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.content_dim())));
}

void AttentionActivations::plan(const std::string& prefix, const PassPlan& plan) {
  const BatchShape& shape = plan.shape;
  const std::int64_t heads = plan.config.model.heads, head_dim = plan.config.head_dim();
  if (!shape.context)
    plan.activation(prefix + "qkv", {shape.sequences, shape.length, 3, heads, head_dim}, qkv);
  plan.activation(prefix + "out", {shape.sequences, shape.length, heads, head_dim}, out);
  plan.activation(prefix + "lse", DType::f32, {shape.sequences, heads, shape.length}, lse);
}

AttentionLayer::AttentionLayer(const Config& config, const ParameterSet& parameters,
                               const PositionalParts& parts, const std::string& prefix,
                               const Tensor* cached_qkv)
    : prefix_(prefix),
      content_dim_(config.content_dim()),
      scale_(content_scale(config)),
      cached_qkv_(cached_qkv),
      deterministic_(config.train.deterministic),
      qkv_(config, parameters, prefix + "qkv"),
      o_(config, parameters, prefix + "o") {
  for (const auto& part : parts) positions_.push_back(part->layer(parameters, prefix));
}

void AttentionLayer::plan(const PassPlan& plan) {
  for (const auto& position : positions_) position->plan(prefix_, plan);
}

Tensor AttentionLayer::slope() const {
  Tensor chosen;
  for (const auto& position : positions_) {
    const Tensor slope = position->slope();
    if (slope && chosen) throw std::logic_error(prefix_ + ": two positional parts give attention a slope");
    if (slope) chosen = slope;
  }
  return chosen;
}

void AttentionLayer::forward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
                             const Tensor& out, const Tensor& x) {
  const std::int64_t before = shared.first_position, length = saved.out.shape[1];
  const Tensor& all = cached_qkv_ ? *cached_qkv_ : saved.qkv;
  // qkv: the rows of this pass. seen: these rows and all rows before them.
  const Tensor qkv = all.slice(1, before, length), seen = all.slice(1, 0, before + length);
  qkv_.forward(device, qkv, x);
  const AttentionInputs inputs{.q = qkv.select(2, 0),
                               .k = qkv.select(2, 1),
                               .first_position = before,
                               .scale = scale_,
                               .first_pass = shared.first_pass};
  for (const auto& position : positions_) position->forward(device, inputs);
  device.run(AttentionForward{.out = saved.out,
                              .lse = saved.lse,
                              .q = inputs.q,
                              .k = seen.select(2, 1),
                              .v = seen.select(2, 2),
                              .slope = slope(),
                              .scale = scale_});
  o_.forward(device, out, saved.out);
}

void AttentionLayer::backward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
                              const Tensor& dx, const Tensor& dout, const Tensor& x) {
  o_.backward_weight(device, dout, saved.out);
  o_.backward_input(device, shared.dattention, dout);
  AttentionBackward attention{.dq = shared.dqkv.select(2, 0),
                              .dk = shared.dqkv.select(2, 1),
                              .dv = shared.dqkv.select(2, 2),
                              .dq_lanes = {},  // these four: if a positional part requests them
                              .dk_lanes = {},
                              .dkey_bias = {},
                              .dslope = {},
                              .delta = shared.delta,
                              .dout = shared.dattention,
                              .out = saved.out,
                              .lse = saved.lse,
                              .q = saved.qkv.select(2, 0),
                              .k = saved.qkv.select(2, 1),
                              .v = saved.qkv.select(2, 2),
                              .slope = slope(),
                              .scale = scale_,
                              .content_dim = content_dim_,
                              .deterministic = deterministic_};
  for (const auto& position : positions_) position->request_gradients(attention);
  device.run(attention);
  for (auto position = positions_.rbegin(); position != positions_.rend(); ++position)
    (*position)->backward(device, attention.dq, attention.dk);
  qkv_.backward_weight(device, shared.dqkv, x);
  qkv_.backward_input(device, dx, shared.dqkv);
}

}  // namespace goat
