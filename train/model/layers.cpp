#include "train/model/layers.h"

namespace goat {

namespace {
// [.., columns] as [rows, columns].
Tensor rows_of(const Tensor& t, std::int64_t columns) { return t.reshape({t.elements() / columns, columns}); }
Tensor matrix(const Tensor& packed) { return rows_of(packed, packed.shape[packed.rank - 1]); }
}  // namespace

Factors factors_of(const Config& config) {
  if (config.model.precision == "bf16") return Factors::bf16;
  return config.model.tf32 == "all" ? Factors::tf32 : Factors::as_stored;
}

LinearLayer::LinearLayer(const Config& config, const ParameterSet& parameters, const std::string& name)
    : LinearLayer(config, parameters, name, 0, matrix(parameters.at(name + ".weight").value).shape[0]) {}

LinearLayer::LinearLayer(const Config& config, const ParameterSet& parameters, const std::string& name,
                         std::int64_t first, std::int64_t count)
    : weight_(&parameters.at(name + ".weight")),
      bias_(parameters.find(name + ".bias")),
      first_(first),
      count_(count),
      factors_(factors_of(config)),
      epilogue_(config.model.epilogue == "library" ? Epilogue::library : Epilogue::own) {}

Tensor LinearLayer::rows(const Tensor& packed) const { return matrix(packed).slice(0, first_, count_); }

Tensor LinearLayer::bias_rows(Tensor Parameter::*view) const {
  if (!bias_) return {};
  const Tensor& packed = bias_->*view;
  return packed.reshape({packed.elements()}).slice(0, first_, count_);
}

void LinearLayer::forward(Device& device, const Tensor& out, const Tensor& x) const {
  const Tensor w = rows(weight_->value);
  device.run(LinearForward{.out = rows_of(out, w.shape[0]),
                           .x = rows_of(x, w.shape[1]),
                           .weight = w,
                           .bias = bias_rows(&Parameter::value),
                           .factors = factors_});
}

void LinearLayer::backward_input(Device& device, const Tensor& dx, const Tensor& dout) const {
  const Tensor w = rows(weight_->value);
  device.run(LinearBackwardInput{
      .dx = rows_of(dx, w.shape[1]), .dout = rows_of(dout, w.shape[0]), .weight = w, .factors = factors_});
}

void LinearLayer::forward_gelu(Device& device, const Tensor& out, const Tensor& projected,
                               const Tensor& x) const {
  const Tensor w = rows(weight_->value);
  device.run(LinearGeluForward{.out = rows_of(out, w.shape[0]),
                               .projected = rows_of(projected, w.shape[0]),
                               .x = rows_of(x, w.shape[1]),
                               .weight = w,
                               .bias = bias_rows(&Parameter::value),
                               .factors = factors_,
                               .epilogue = epilogue_});
}

void LinearLayer::backward_input_gelu(Device& device, const Tensor& dprojected, const Tensor& dout,
                                      const Tensor& projected) const {
  const Tensor w = rows(weight_->value);
  device.run(LinearGeluBackwardInput{.dprojected = rows_of(dprojected, w.shape[1]),
                                     .dout = rows_of(dout, w.shape[0]),
                                     .weight = w,
                                     .projected = rows_of(projected, w.shape[1]),
                                     .factors = factors_,
                                     .epilogue = epilogue_});
}

void LinearLayer::backward_weight(Device& device, const Tensor& dout, const Tensor& x) const {
  const Tensor dw = rows(weight_->grad);
  device.run(LinearBackwardWeight{.dweight = dw,
                                  .dbias = bias_rows(&Parameter::grad),
                                  .dout = rows_of(dout, dw.shape[0]),
                                  .x = rows_of(x, dw.shape[1]),
                                  .factors = factors_});
}

NormLayer::NormLayer(const Config& config, const ParameterSet& parameters, const std::string& name)
    : kind_(block_spec(config).norm),
      name_(name),
      eps_(static_cast<float>(config.model.norm_eps)),
      weight_(&parameters.at(name + ".weight")),
      bias_(parameters.find(name + ".bias")) {}

void NormLayer::plan(const PassPlan& plan) {
  if (kind_ == NormKind::layer) plan.activation(name_ + ".mean", DType::f32, {plan.shape.tokens()}, mean_);
  plan.activation(name_ + ".rstd", DType::f32, {plan.shape.tokens()}, rstd_);
}

void NormLayer::forward(Device& device, const BlockMemory& shared, const Tensor& out, const Tensor& sum,
                        const Tensor& x, const Tensor& residual) const {
  const Tensor written = residual ? sum : Tensor{};
  if (kind_ == NormKind::rms)
    return device.run(RmsNormForward{.out = out,
                                     .rstd = rstd_,
                                     .sum = written,
                                     .x = x,
                                     .residual = residual,
                                     .weight = weight_->value,
                                     .eps = eps_});
  device.run(LayerNormForward{.out = out,
                              .mean = mean_,
                              .rstd = rstd_,
                              .sum = written,
                              .x = x,
                              .residual = residual,
                              .weight = weight_->value,
                              .bias = bias_ ? bias_->value : shared.no_bias,
                              .eps = eps_});
}

void NormLayer::backward(Device& device, const BlockMemory& shared, const Tensor& dsum, const Tensor& dout,
                         const Tensor& sum) const {
  if (kind_ == NormKind::rms)
    return device.run(RmsNormBackward{.dsum = dsum,
                                      .dweight = weight_->grad,
                                      .dout = dout,
                                      .sum = sum,
                                      .rstd = rstd_,
                                      .weight = weight_->value});
  device.run(LayerNormBackward{.dsum = dsum,
                               .dweight = weight_->grad,
                               .dbias = bias_ ? bias_->grad : shared.no_dbias,
                               .dout = dout,
                               .sum = sum,
                               .mean = mean_,
                               .rstd = rstd_,
                               .weight = weight_->value});
}

}  // namespace goat
