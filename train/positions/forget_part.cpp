#include "train/positions/forget_part.h"

namespace goat {

namespace {

// What a layer's gates are, and the key bias that follows from them.
struct Gates {
  Tensor gate;      // f32 [B, T, H], before the sigmoid
  Tensor key_bias;  // f64 [B, H, T]; absent with a KV cache, which holds that of all tokens

  void plan(const std::string& prefix, const PassPlan& plan) {
    const std::int64_t sequences = plan.shape.sequences, length = plan.shape.length,
                       heads = plan.config.model.heads;
    plan.activation(prefix + "forget.gate", DType::f32, {sequences, length, heads}, gate);
    if (plan.shape.context == 0)
      plan.activation(prefix + "forget.key_bias", DType::f64, {sequences, heads, length}, key_bias);
  }
};

// What all layers share.
struct ForgetMemory {
  Gates gates;   // of the latest layer, where nothing is saved for backward or backward computes it again
  Tensor dgate;  // f32 [B, T, H]
};

bool keeps_gates(const PassPlan& plan) { return plan.training && plan.config.model.recompute != "block"; }

// [N, H] of [B, T, H]
Tensor by_token(const Tensor& gates) {
  return gates.reshape({gates.shape[0] * gates.shape[1], gates.shape[2]});
}

class ForgetLayer final : public PositionalLayer {
 public:
  ForgetLayer(const ForgetMemory& shared, const Parameter& weight, const Parameter& bias)
      : shared_(shared), weight_(weight), bias_(bias) {}

  void plan(const std::string& prefix, const PassPlan& plan) override {
    if (keeps_gates(plan)) own_.plan(prefix, plan);
  }
  void forward(Device& device, const AttentionInputs& inputs) override {
    const Gates& saved = gates();
    key_bias_ = inputs.cached_key_bias ? inputs.cached_key_bias : saved.key_bias;
    device.run(ForgetGatesForward{
        .gate = by_token(saved.gate), .x = inputs.x, .weight = weight_.value, .bias = bias_.value});
    device.run(ForgetBiasForward{
        .key_bias = key_bias_, .gate = saved.gate, .first_position = inputs.first_position});
  }
  Tensor key_bias() const override { return key_bias_; }
  void backward(Device& device, const AttentionGradients& gradients) override {
    device.run(
        ForgetBiasBackward{.dgate = shared_.dgate, .dkey_bias = gradients.dkey_bias, .gate = gates().gate});
  }
  void input_backward(Device& device, const Tensor& dx, const Tensor& x) override {
    device.run(ForgetGatesBackward{.dx = dx,
                                   .dweight = weight_.grad,
                                   .dbias = bias_.grad,
                                   .dgate = by_token(shared_.dgate),
                                   .x = x,
                                   .weight = weight_.value});
  }

 private:
  const Gates& gates() const { return own_.gate ? own_ : shared_.gates; }

  const ForgetMemory& shared_;
  const Parameter &weight_, &bias_;
  Gates own_;        // if they are saved for backward
  Tensor key_bias_;  // of the latest pass
};

class ForgetPart final : public PositionalPart {
 public:
  void plan(const PassPlan& plan) override {
    if (!keeps_gates(plan)) shared_.gates.plan("", plan);
    if (plan.training)
      plan.workspace("forget.dgate", DType::f32,
                     {plan.shape.sequences, plan.shape.length, plan.config.model.heads}, shared_.dgate);
  }
  bool reads_dkey_bias() const override { return true; }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet& parameters,
                                         const std::string& prefix) const override {
    return std::make_unique<ForgetLayer>(shared_, parameters.at(prefix + "forget.weight"),
                                         parameters.at(prefix + "forget.bias"));
  }

 private:
  ForgetMemory shared_;
};

}  // namespace

void declare_forget(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  constexpr double weight_std = 0.02, remembering = 2;
  const std::int64_t heads = config.model.heads;
  const auto lr_scale = static_cast<float>(config.prior.forget_lr_scale);
  parameters.declare(prefix + "forget.weight", {heads, config.model.width}, ParameterRole::gate,
                     {.std = weight_std}, lr_scale);
  parameters.declare(prefix + "forget.bias", {heads}, ParameterRole::vector, {.constant = remembering},
                     lr_scale);
}

std::unique_ptr<PositionalPart> make_forget(const Config&, const ParameterSet&) {
  return std::make_unique<ForgetPart>();
}

}  // namespace goat
