#include "train/model/qkv_projection.h"

#include <cmath>

namespace goat {

void QkvActivations::plan(const std::string& prefix, const PassPlan& plan) {
  const Config& config = plan.config;
  const auto add = [&](const char* name, std::int64_t heads, Tensor& view) {
    plan.activation(prefix + name, {plan.shape.sequences, plan.shape.length, heads, config.head_dim()}, view);
  };
  const bool cached = plan.shape.context != 0;
  if (!config.model.qk_norm) {
    if (!cached) add("qkv", config.qkv_heads(), packed);
    return;
  }
  add("raw_q", config.model.heads, raw_q);
  add("raw_k", config.kv_heads(), raw_k);
  add("q", config.model.heads, q);
  if (cached) return;
  add("k", config.kv_heads(), k);
  add("v", config.kv_heads(), v);
}

HeadNorm::HeadNorm(const Config& config, const ParameterSet& parameters, const std::string& name,
                   std::int64_t heads)
    : name_(name),
      heads_(heads),
      eps_(static_cast<float>(config.model.norm_eps * static_cast<double>(config.content_dim()) /
                              static_cast<double>(config.head_dim()))),
      weight_(&parameters.at(name + ".padded")) {}

void HeadNorm::plan(const PassPlan& plan) {
  plan.activation(name_ + ".rstd", DType::f32, {plan.shape.tokens() * heads_}, rstd_);
}

namespace {
Tensor rows_of(const Tensor& vectors) {
  const std::int64_t head_dim = vectors.shape[3];
  return vectors.reshape({vectors.elements() / head_dim, head_dim});
}
}  // namespace

void HeadNorm::forward(Device& device, const Tensor& out, const Tensor& x) const {
  device.run(RmsNormForward{.out = rows_of(out),
                            .rstd = rstd_,
                            .sum = {},
                            .x = rows_of(x),
                            .residual = {},
                            .weight = weight_->value,
                            .eps = eps_});
}

void HeadNorm::backward(Device& device, const Tensor& dx, const Tensor& dout, const Tensor& x) const {
  device.set_zero(dx.data, dx.bytes());
  device.run(RmsNormBackward{.dsum = rows_of(dx),
                             .dweight = weight_->grad,
                             .dout = rows_of(dout),
                             .sum = rows_of(x),
                             .rstd = rstd_,
                             .weight = weight_->value});
}

float logit_scale(const Config& config) {
  const auto content = static_cast<double>(config.content_dim()),
             head_dim = static_cast<double>(config.head_dim());
  const double scale = config.model.attn_scale == "none" ? 1.0 : 1.0 / std::sqrt(content);
  return static_cast<float>(config.model.qk_norm ? scale * content / head_dim : scale);
}

QkvProjection::QkvProjection(const Config& config, const ParameterSet& parameters, const std::string& prefix,
                             const LayerCache* cache)
    : heads_(config.model.heads), kv_heads_(config.kv_heads()), cache_(cache) {
  const std::string name = prefix + "qkv";
  if (!config.model.qk_norm) {
    linear_.emplace_back(config, parameters, name);
    return;
  }
  std::int64_t first = 0;
  for (const std::int64_t heads : {heads_, kv_heads_, kv_heads_}) {
    const std::int64_t rows = heads * config.head_dim();
    linear_.emplace_back(config, parameters, name, first, rows);
    first += rows;
  }
  norms_.emplace_back(config, parameters, prefix + "q_norm", heads_);
  norms_.emplace_back(config, parameters, prefix + "k_norm", kv_heads_);
}

void QkvProjection::plan(const PassPlan& plan) {
  for (HeadNorm& norm : norms_) norm.plan(plan);
}

HeadVectors QkvProjection::side_by_side(const Tensor& all) const {
  return {.q = all.slice(2, 0, heads_),
          .k = all.slice(2, heads_, kv_heads_),
          .v = all.slice(2, heads_ + kv_heads_, kv_heads_)};
}

HeadVectors QkvProjection::rows(const QkvActivations& saved, std::int64_t first, std::int64_t length) const {
  if (norms_.empty()) return side_by_side((cache_ ? cache_->qkv : saved.packed).slice(1, first, length));
  return {.q = saved.q,
          .k = (cache_ ? cache_->k : saved.k).slice(1, first, length),
          .v = (cache_ ? cache_->v : saved.v).slice(1, first, length)};
}

HeadVectors QkvProjection::forward(Device& device, const QkvActivations& saved, std::int64_t first_position,
                                   std::int64_t length, const Tensor& x) const {
  const HeadVectors vectors = rows(saved, first_position, length);
  if (norms_.empty()) {
    const Tensor& all = cache_ ? cache_->qkv : saved.packed;
    linear_[0].forward(device, all.slice(1, first_position, length), x);
    return vectors;
  }
  linear_[0].forward(device, saved.raw_q, x);
  linear_[1].forward(device, saved.raw_k, x);
  linear_[2].forward(device, vectors.v, x);
  norms_[0].forward(device, vectors.q, saved.raw_q);
  norms_[1].forward(device, vectors.k, saved.raw_k);
  return vectors;
}

HeadVectors QkvProjection::gradients(const BlockMemory& shared) const {
  if (norms_.empty()) return side_by_side(shared.dqkv);
  return {.q = shared.parts.dq, .k = shared.parts.dk, .v = shared.parts.dv};
}

void QkvProjection::backward(Device& device, const BlockMemory& shared, const QkvActivations& saved,
                             const Tensor& dx, const Tensor& x) const {
  if (!norms_.empty()) return backward_parts(device, shared.parts, saved, dx, x);
  linear_[0].backward_weight(device, shared.dqkv, x);
  linear_[0].backward_input(device, dx, shared.dqkv);
}

// dx is the sum of what q, k and v add to it.
void QkvProjection::backward_parts(Device& device, const QkvGradients& parts, const QkvActivations& saved,
                                   const Tensor& dx, const Tensor& x) const {
  norms_[0].backward(device, parts.draw_q, parts.dq, saved.raw_q);
  norms_[1].backward(device, parts.draw_k, parts.dk, saved.raw_k);
  int part = 0;
  for (const Tensor& dout : {parts.draw_q, parts.draw_k, parts.dv}) {
    const LinearLayer& linear = linear_[static_cast<std::size_t>(part)];
    linear.backward_weight(device, dout, x);
    linear.backward_input(device, parts.dinputs.select(0, part++), dout);
  }
  const std::int64_t elements = dx.elements();
  const Tensor sum = (parts.dinput_sum ? parts.dinput_sum : dx).reshape({elements});
  device.run(SumParts{.out = sum, .parts = parts.dinputs.reshape({3, elements})});
  if (parts.dinput_sum) device.run(Cast{.out = dx.reshape({elements}), .x = sum});
}

}  // namespace goat
