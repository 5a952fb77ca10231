#include "train/model/attention_layer.h"

#include <cmath>

namespace goat {

void AttentionActivations::plan(const std::string& prefix, const Config& config, BatchShape shape,
                                MemoryPlan& memory) {
  const std::int64_t heads = config.model.heads, head_dim = config.head_dim();
  if (!shape.context)
    memory.add(MemoryCategory::activations, prefix + "qkv", DType::f32,
               {shape.sequences, shape.length, 3, heads, head_dim}, qkv);
  memory.add(MemoryCategory::activations, prefix + "out", DType::f32,
             {shape.sequences, shape.length, heads, head_dim}, out);
  memory.add(MemoryCategory::activations, prefix + "lse", DType::f32, {shape.sequences, heads, shape.length},
             lse);
}

AttentionLayer::AttentionLayer(const Config& config, const ParameterSet& parameters,
                               const std::string& prefix, const Tensor* cached_qkv)
    : content_dim_(config.content_dim()),
      scale_(config.model.attn_scale == "none"
                 ? 1.0f
                 : static_cast<float>(1.0 / std::sqrt(static_cast<double>(content_dim_)))),
      learned_frequencies_(config.prior.learned_frequencies),
      cached_qkv_(cached_qkv),
      deterministic_(config.train.deterministic),
      qkv_(config, parameters, prefix + "qkv"),
      o_(config, parameters, prefix + "o") {
  if (config.has_prior()) prior_ = std::make_unique<PriorLayer>(config, parameters, prefix + "prior.");
}

void AttentionLayer::plan(const std::string& prefix, BatchShape shape, MemoryPlan& memory) {
  if (prior_) prior_->plan(prefix + "prior.", shape, memory);
}

void AttentionLayer::forward(Device& device, SharedBuffers& shared, const AttentionActivations& saved,
                             const Tensor& out, const Tensor& x) {
  const std::int64_t before = shared.first_position, length = saved.out.shape[1];
  const Tensor& all = cached_qkv_ ? *cached_qkv_ : saved.qkv;
  // qkv: the rows of this pass. seen: these rows and all rows before them.
  const Tensor qkv = all.slice(1, before, length), seen = all.slice(1, 0, before + length);
  const Tensor q = qkv.select(2, 0);
  qkv_.forward(device, qkv, x);
  if (prior_) prior_->forward(device, shared, q, qkv.select(2, 1), scale_);
  device.run(AttentionForward{.out = saved.out,
                              .lse = saved.lse,
                              .q = q,
                              .k = seen.select(2, 1),
                              .v = seen.select(2, 2),
                              .slope = slope(),
                              .scale = scale_});
  o_.forward(device, out, saved.out);
}

void AttentionLayer::backward(Device& device, SharedBuffers& shared, const AttentionActivations& saved,
                              const Tensor& dx, const Tensor& dout, const Tensor& x) {
  const Tensor dattention = shared.dattention.reshape(
      {saved.out.shape[0], saved.out.shape[1], saved.out.shape[2], saved.out.shape[3]});
  o_.backward_weight(device, dout, saved.out);
  o_.backward_input(device, dattention, dout);
  device.run(AttentionBackward{.dq = shared.dqkv.select(2, 0),
                               .dk = shared.dqkv.select(2, 1),
                               .dv = shared.dqkv.select(2, 2),
                               .dq_lanes = prior_ ? shared.dq_lanes : Tensor{},
                               .dk_lanes = prior_ && learned_frequencies_ ? shared.dk_lanes : Tensor{},
                               .dkey_bias = prior_ ? shared.dkey_bias : Tensor{},
                               .dslope = slope() ? shared.dslope : Tensor{},
                               .delta = shared.delta,
                               .dout = dattention,
                               .out = saved.out,
                               .lse = saved.lse,
                               .q = saved.qkv.select(2, 0),
                               .k = saved.qkv.select(2, 1),
                               .v = saved.qkv.select(2, 2),
                               .slope = slope(),
                               .scale = scale_,
                               .content_dim = content_dim_,
                               .deterministic = deterministic_});
  if (prior_) prior_->backward(device, shared);
  qkv_.backward_weight(device, shared.dqkv, x);
  qkv_.backward_input(device, dx, shared.dqkv);
}

}  // namespace goat
