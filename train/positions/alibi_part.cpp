#include "train/positions/alibi_part.h"

#include "kernels/prior_setup.h"

namespace goat {

namespace {

class AlibiLayer final : public PositionalLayer {
 public:
  explicit AlibiLayer(const Tensor& slopes) : slopes_(slopes) {}
  Tensor slope() const override { return slopes_; }

 private:
  const Tensor& slopes_;
};

class AlibiPart final : public PositionalPart {
 public:
  void plan(const PassPlan& plan) override {
    plan.workspace("alibi.slopes", DType::f32, {plan.config.model.heads}, slopes_);
  }
  void fill_tables(Device& device) const override {
    const std::vector<double> slopes = alibi_slopes(slopes_.elements());
    const std::vector<float> rounded(slopes.begin(), slopes.end());
    device.upload(slopes_.data, rounded.data(), slopes_.bytes());
  }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet&, const std::string&) const override {
    return std::make_unique<AlibiLayer>(slopes_);
  }

 private:
  Tensor slopes_;  // f32 [H]
};

// What the backward passes of all layers share.
struct SlopeGradients {
  Tensor dslope;     // f32 [B, H, T]
  Tensor dslopes;    // f32 [H], its sum over B and T
  Tensor positions;  // i32 [T, 1], which count for nothing where there are no modes

  void plan(const PassPlan& plan) {
    const std::int64_t heads = plan.config.model.heads, length = plan.shape.length;
    plan.workspace("alibi.dslope", DType::f32, {plan.shape.sequences, heads, length}, dslope);
    plan.workspace("alibi.dslopes", DType::f32, {heads}, dslopes);
    plan.workspace("alibi.positions", DType::i32, {length, 1}, positions);
  }

  // dslopes = the sum of dslope over B and T. PriorLanesBackward takes it in double, here without any modes.
  void add_up(Device& device) const {
    const std::int64_t sequences = dslope.shape[0], heads = dslope.shape[1], length = dslope.shape[2];
    const Tensor no_modes = Tensor::of<float>(nullptr, {heads, 0});
    device.set_zero(dslopes.data, dslopes.bytes());
    device.set_zero(positions.data, positions.bytes());
    device.run(PriorLanesBackward{.dalpha = no_modes,
                                  .dbeta = no_modes,
                                  .dlambda = dslopes,
                                  .dfrequency = {},
                                  .dq_lanes = Tensor::of<float>(nullptr, {sequences, heads, length, 0}),
                                  .dk_lanes = {},
                                  .dslope = dslope,
                                  .alpha = no_modes,
                                  .beta = no_modes,
                                  .fourier = Tensor::of<float>(nullptr, {length, 0, 2}),
                                  .positions = positions});
  }
};

class LearnedAlibiLayer final : public PositionalLayer {
 public:
  LearnedAlibiLayer(const SlopeGradients& shared, const Parameter& rho) : shared_(shared), rho_(rho) {}

  void plan(const std::string& prefix, const PassPlan& plan) override {
    plan.activation(prefix + "prior.softplus_slope", DType::f32, {rho_.value.elements()}, slopes_);
  }
  void forward(Device& device, const AttentionInputs&) override {
    device.run(SoftplusForward{.out = slopes_, .x = rho_.value});
  }
  Tensor slope() const override { return slopes_; }
  void request_gradients(AttentionBackward& op) const override { op.dslope = shared_.dslope; }
  void backward(Device& device, const AttentionGradients&) override {
    shared_.add_up(device);
    device.run(SoftplusBackward{.dx = rho_.grad, .dout = shared_.dslopes, .x = rho_.value});
  }

 private:
  const SlopeGradients& shared_;
  const Parameter& rho_;
  Tensor slopes_;  // f32 [H]
};

class LearnedAlibiPart final : public PositionalPart {
 public:
  void plan(const PassPlan& plan) override {
    if (plan.training) shared_.plan(plan);
  }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet& parameters,
                                         const std::string& prefix) const override {
    return std::make_unique<LearnedAlibiLayer>(shared_, parameters.at(prefix + "prior.slope"));
  }

 private:
  SlopeGradients shared_;
};

}  // namespace

std::unique_ptr<PositionalPart> make_alibi(const Config&, const ParameterSet&) {
  return std::make_unique<AlibiPart>();
}

void declare_learned_alibi(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  Initial rho{.values = alibi_slopes(config.model.heads)};
  for (double& value : rho.values) value = inverse_softplus(value);
  parameters.declare(prefix + "prior.slope", {config.model.heads}, ParameterRole::vector, rho,
                     static_cast<float>(config.prior.lr_scale));
}

std::unique_ptr<PositionalPart> make_learned_alibi(const Config&, const ParameterSet&) {
  return std::make_unique<LearnedAlibiPart>();
}

}  // namespace goat
