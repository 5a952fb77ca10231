#include "train/model/attention_layer.h"

#include <stdexcept>

namespace goat {

void AttentionActivations::plan(const std::string& prefix, const PassPlan& plan) {
  const BatchShape& shape = plan.shape;
  const std::int64_t heads = plan.config.model.heads, head_dim = plan.config.head_dim();
  qkv.plan(prefix, plan);
  plan.activation(prefix + "out", {shape.sequences, shape.length, heads, head_dim}, out);
  plan.activation(prefix + "lse", DType::f32, {shape.sequences, heads, shape.length}, lse);
}

AttentionLayer::AttentionLayer(const Config& config, const ParameterSet& parameters,
                               const PositionalParts& parts, const std::string& prefix,
                               const LayerCache* cache)
    : prefix_(prefix),
      content_dim_(config.content_dim()),
      scale_(logit_scale(config)),
      cache_(cache),
      deterministic_(config.train.deterministic),
      qkv_(config, parameters, prefix, cache),
      o_(config, parameters, prefix + "o") {
  for (const auto& part : parts) positions_.push_back(part->layer(parameters, prefix));
}

void AttentionLayer::plan(const PassPlan& plan) {
  qkv_.plan(plan);
  for (const auto& position : positions_) position->plan(prefix_, plan);
}

Tensor AttentionLayer::only(Tensor (PositionalLayer::*operand)() const, const char* what) const {
  Tensor chosen;
  for (const auto& position : positions_) {
    const Tensor own = ((*position).*operand)();
    if (own && chosen) throw std::logic_error(prefix_ + ": two positional parts give attention a " + what);
    if (own) chosen = own;
  }
  return chosen;
}

Tensor AttentionLayer::slope() const { return only(&PositionalLayer::slope, "slope"); }
Tensor AttentionLayer::key_bias() const { return only(&PositionalLayer::key_bias, "key bias"); }

void AttentionLayer::forward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
                             const Tensor& out, const Tensor& x) {
  const std::int64_t before = shared.first_position, length = saved.out.shape[1];
  const HeadVectors now = qkv_.forward(device, saved.qkv, before, length, x);
  const AttentionInputs inputs{.x = x,
                               .q = now.q,
                               .k = now.k,
                               .cached_key_bias = cache_ ? cache_->key_bias : Tensor{},
                               .first_position = before,
                               .scale = scale_,
                               .first_pass = shared.first_pass};
  for (const auto& position : positions_) position->forward(device, inputs);
  // The rows of this pass and all rows before them.
  const HeadVectors seen = qkv_.rows(saved.qkv, 0, before + length);
  const Tensor bias = key_bias();
  device.run(AttentionForward{.out = saved.out,
                              .lse = saved.lse,
                              .q = now.q,
                              .k = seen.k,
                              .v = seen.v,
                              .slope = slope(),
                              .key_bias = bias ? bias.slice(2, 0, before + length) : Tensor{},
                              .scale = scale_});
  o_.forward(device, out, saved.out);
}

// Without the optional gradients that positional parts request.
AttentionBackward AttentionLayer::gradients_of(const BlockMemory& shared,
                                               const AttentionActivations& saved) const {
  const HeadVectors gradients = qkv_.gradients(shared), vectors = qkv_.rows(saved.qkv, 0, saved.out.shape[1]);
  return {.dq = gradients.q,
          .dk = gradients.k,
          .dv = gradients.v,
          .dq_lanes = {},
          .dk_lanes = {},
          .dkey_bias = shared.dkey_bias,
          .dslope = {},
          .delta = shared.delta,
          .dout = shared.dattention,
          .out = saved.out,
          .lse = saved.lse,
          .q = vectors.q,
          .k = vectors.k,
          .v = vectors.v,
          .slope = slope(),
          .key_bias = key_bias(),
          .scale = scale_,
          .content_dim = content_dim_,
          .deterministic = deterministic_};
}

void AttentionLayer::backward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
                              const Tensor& dx, const Tensor& dout, const Tensor& x) {
  o_.backward_weight(device, dout, saved.out);
  o_.backward_input(device, shared.dattention, dout);
  AttentionBackward attention = gradients_of(shared, saved);
  for (const auto& position : positions_) position->request_gradients(attention);
  device.run(attention);
  const AttentionGradients gradients{
      .dq = attention.dq, .dk = attention.dk, .dkey_bias = attention.dkey_bias};
  for (auto position = positions_.rbegin(); position != positions_.rend(); ++position)
    (*position)->backward(device, gradients);
  qkv_.backward(device, shared, saved.qkv, dx, x);
  for (const auto& position : positions_) position->input_backward(device, dx, x);
}

AttentionReads AttentionLayer::reads(const AttentionActivations& saved) const {
  const HeadVectors vectors = qkv_.rows(saved.qkv, 0, saved.out.shape[1]);
  return {.q = vectors.q, .k = vectors.k, .key_bias = key_bias()};
}

}  // namespace goat
