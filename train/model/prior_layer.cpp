#include "train/model/prior_layer.h"

namespace goat {

PriorLayer::PriorLayer(const Config& config, const ParameterSet& parameters, const std::string& prefix)
    : content_dim_(config.content_dim()),
      heads_(config.model.heads),
      alpha_(&parameters.at(prefix + "alpha")),
      beta_(&parameters.at(prefix + "beta")),
      bump_(&parameters.at(prefix + "bump")),
      w1_(&parameters.at(prefix + "sink.w1")),
      b1_(&parameters.at(prefix + "sink.b1")),
      w2_(&parameters.at(prefix + "sink.w2")) {
  if (config.prior.learned_frequencies) frequency_ = &parameters.at(prefix + "frequency");
  if (config.prior.recency == "free") lambda_ = &parameters.at(prefix + "slope");
  if (config.prior.recency == "softplus") rho_ = &parameters.at(prefix + "slope");
}

void PriorLayer::plan(const std::string& prefix, BatchShape shape, MemoryPlan& memory) {
  const auto add = [&](const char* name, std::initializer_list<std::int64_t> extents, Tensor& view) {
    memory.add(MemoryCategory::activations, prefix + name, DType::f32, extents, view);
  };
  add("key_bias", {heads_, shape.positions()}, key_bias_);
  add("hidden", {shape.positions(), b1_->value.shape[0]}, hidden_);
  if (frequency_) add("fourier", {shape.positions(), frequency_->value.shape[0], 2}, fourier_);
  if (rho_) add("softplus_slope", {heads_}, softplus_slope_);
}

void PriorLayer::fill_tables(Device& device, const SharedBuffers& shared) {
  device.run(SinkForward{.key_bias = key_bias_,
                         .hidden = hidden_,
                         .features = shared.sink_features,
                         .w1 = w1_->value,
                         .b1 = b1_->value,
                         .w2 = w2_->value,
                         .bump = bump_->value});
  if (frequency_)
    device.run(
        FourierTable{.table = fourier_, .frequency = frequency_->value, .positions = shared.positions});
  if (rho_) device.run(SoftplusForward{.out = softplus_slope_, .x = rho_->value});
  tables_filled_ = true;
}

void PriorLayer::forward(Device& device, const SharedBuffers& shared, const Tensor& q, const Tensor& k,
                         float scale) {
  // During a generation the weights do not change, so that the tables are computed once.
  if (shared.first_position == 0 || !tables_filled_) fill_tables(device, shared);
  device.run(PriorLanesForward{.q = q,
                               .k = k,
                               .alpha = alpha_->value,
                               .beta = beta_->value,
                               .key_bias = key_bias_,
                               .fourier = frequency_ ? fourier_ : shared.fourier,
                               .content_dim = content_dim_,
                               .first_position = shared.first_position,
                               .scale = scale});
}

Tensor PriorLayer::slope() const {
  if (rho_) return softplus_slope_;
  return lambda_ ? lambda_->value : Tensor{};
}

void PriorLayer::backward(Device& device, SharedBuffers& shared) const {
  Tensor dlambda;
  if (rho_) {
    dlambda = shared.dlambda;
    device.set_zero(dlambda.data, dlambda.bytes());
  } else if (lambda_) {
    dlambda = lambda_->grad;
  }
  device.run(PriorLanesBackward{.dalpha = alpha_->grad,
                                .dbeta = beta_->grad,
                                .dlambda = dlambda,
                                .dfrequency = frequency_ ? frequency_->grad : Tensor{},
                                .dq_lanes = shared.dq_lanes,
                                .dk_lanes = frequency_ ? shared.dk_lanes : Tensor{},
                                .dslope = dlambda ? shared.dslope : Tensor{},
                                .alpha = alpha_->value,
                                .beta = beta_->value,
                                .fourier = frequency_ ? fourier_ : shared.fourier,
                                .positions = shared.positions});
  if (rho_) device.run(SoftplusBackward{.dx = rho_->grad, .dout = dlambda, .x = rho_->value});
  device.run(SinkBackward{.dw1 = w1_->grad,
                          .db1 = b1_->grad,
                          .dw2 = w2_->grad,
                          .dbump = bump_->grad,
                          .dkey_bias_sum = shared.dkey_bias_sum,
                          .dkey_bias = shared.dkey_bias,
                          .hidden = hidden_,
                          .features = shared.sink_features,
                          .w2 = w2_->value});
}

}  // namespace goat
