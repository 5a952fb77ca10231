#include "train/positions/goat_part.h"

#include "kernels/prior_setup.h"
#include "train/positions/position_table.h"

namespace goat {

namespace {

// softplus(-30) = 1e-13: practically no slope. Its gradient is as small, so that (unlike a free slope of 0)
// it cannot be learned.
constexpr double zero_softplus_slope = -30;

// What all layers share: the tables of fixed frequencies, and memory for gradients.
struct GoatTables {
  PositionTable relative;
  Tensor sink_frequency;  // f64 [M]
  Tensor sink_features;   // f32 [T, F]
  // From AttentionBackward and SinkBackward (kernels/operations.h)
  Tensor dq_lanes, dk_lanes, dkey_bias_sum, dslope, dlambda;

  void plan(const PassPlan& plan);
  void plan_gradients(const PassPlan& plan);
  void fill(const Config& config, Device& device) const;
};

void GoatTables::plan(const PassPlan& plan) {
  const auto& prior = plan.config.prior;
  relative.plan("prior", prior.pos_rank, plan);
  plan.workspace("prior.sink_frequency", DType::f64, {prior.abs_rank}, sink_frequency);
  plan.workspace("prior.sink_features", DType::f32, {plan.shape.positions(), plan.config.sink_features()},
                 sink_features);
  if (plan.training) plan_gradients(plan);
}

void GoatTables::plan_gradients(const PassPlan& plan) {
  const std::int64_t sequences = plan.shape.sequences, length = plan.shape.length,
                     heads = plan.config.model.heads, kv_heads = plan.config.kv_heads(),
                     lanes = 2 * plan.config.prior.pos_rank;
  const auto add = [&](const char* name, PassPlan::Extents extents, Tensor& view) {
    plan.workspace(name, DType::f32, extents, view);
  };
  add("dq_lanes", {sequences, heads, length, lanes}, dq_lanes);
  if (plan.config.prior.learned_frequencies) add("dk_lanes", {sequences, kv_heads, length, lanes}, dk_lanes);
  add("dkey_bias_sum", {kv_heads, length}, dkey_bias_sum);
  add("dslope", {sequences, heads, length}, dslope);
  add("dlambda", {heads}, dlambda);
}

void GoatTables::fill(const Config& config, Device& device) const {
  relative.fill(device, fourier_frequencies(config.prior.pos_rank, config.prior.base));
  const std::vector<double> absolute = fourier_frequencies(config.prior.abs_rank, config.prior.abs_base);
  device.upload(sink_frequency.data, absolute.data(), sink_frequency.bytes());
  device.run(SinkFeatures{.features = sink_features,
                          .frequency = sink_frequency,
                          .positions = relative.positions,
                          .train_length = config.data.seq_len});
}

class GoatLayer final : public PositionalLayer {
 public:
  GoatLayer(const Config& config, const GoatTables& tables, const ParameterSet& parameters,
            const std::string& prefix);
  void plan(const std::string& prefix, const PassPlan& plan) override;
  void forward(Device& device, const AttentionInputs& inputs) override;
  Tensor slope() const override;
  void request_gradients(AttentionBackward& op) const override;
  void backward(Device& device, const AttentionGradients& gradients) override;

 private:
  // Computes sink_, fourier_ and softplus_slope_ from the weights.
  void compute_prior(Device& device);
  const Tensor& fourier() const { return frequency_ ? fourier_ : tables_.relative.fourier; }

  const GoatTables& tables_;
  std::int64_t content_dim_, heads_, kv_heads_;
  const Parameter *alpha_, *beta_, *bump_, *w1_, *b1_, *w2_;
  const Parameter* frequency_ = nullptr;  // learned frequencies only
  const Parameter* lambda_ = nullptr;     // the slope itself, if recency = free
  const Parameter* rho_ = nullptr;        // slope = softplus(rho), if recency = softplus
  Tensor sink_, hidden_;                  // f32 [H_k, T] and [T, n]; T is T_max with a KV cache
  Tensor fourier_;                        // f32 [T, R, 2], learned frequencies only
  Tensor softplus_slope_;                 // f32 [H], softplus only
};

GoatLayer::GoatLayer(const Config& config, const GoatTables& tables, const ParameterSet& parameters,
                     const std::string& prefix)
    : tables_(tables),
      content_dim_(config.content_dim()),
      heads_(config.model.heads),
      kv_heads_(config.kv_heads()),
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

void GoatLayer::plan(const std::string& prefix, const PassPlan& plan) {
  const std::int64_t positions = plan.shape.positions();
  const auto add = [&](const char* name, PassPlan::Extents extents, Tensor& view) {
    plan.activation(prefix + "prior." + name, DType::f32, extents, view);
  };
  add("key_bias", {kv_heads_, positions}, sink_);
  add("hidden", {positions, b1_->value.shape[0]}, hidden_);
  if (frequency_) add("fourier", {positions, frequency_->value.shape[0], 2}, fourier_);
  if (rho_) add("softplus_slope", {heads_}, softplus_slope_);
}

void GoatLayer::compute_prior(Device& device) {
  device.run(SinkForward{.key_bias = sink_,
                         .hidden = hidden_,
                         .features = tables_.sink_features,
                         .w1 = w1_->value,
                         .b1 = b1_->value,
                         .w2 = w2_->value,
                         .bump = bump_->value});
  if (frequency_)
    device.run(FourierTable{
        .table = fourier_, .frequency = frequency_->value, .positions = tables_.relative.positions});
  if (rho_) device.run(SoftplusForward{.out = softplus_slope_, .x = rho_->value});
}

void GoatLayer::forward(Device& device, const AttentionInputs& inputs) {
  // During a generation the weights do not change, so that the prior is computed once.
  if (inputs.first_position == 0 || inputs.first_pass) compute_prior(device);
  device.run(PriorLanesForward{.q = inputs.q,
                               .k = inputs.k,
                               .alpha = alpha_->value,
                               .beta = beta_->value,
                               .key_bias = sink_,
                               .fourier = fourier(),
                               .content_dim = content_dim_,
                               .first_position = inputs.first_position,
                               .scale = inputs.scale});
}

Tensor GoatLayer::slope() const {
  if (rho_) return softplus_slope_;
  return lambda_ ? lambda_->value : Tensor{};
}

void GoatLayer::request_gradients(AttentionBackward& op) const {
  op.dq_lanes = tables_.dq_lanes;
  if (frequency_) op.dk_lanes = tables_.dk_lanes;
  if (slope()) op.dslope = tables_.dslope;
}

void GoatLayer::backward(Device& device, const AttentionGradients& gradients) {
  Tensor dlambda;
  if (rho_) {
    dlambda = tables_.dlambda;
    device.set_zero(dlambda.data, dlambda.bytes());
  } else if (lambda_) {
    dlambda = lambda_->grad;
  }
  device.run(PriorLanesBackward{.dalpha = alpha_->grad,
                                .dbeta = beta_->grad,
                                .dlambda = dlambda,
                                .dfrequency = frequency_ ? frequency_->grad : Tensor{},
                                .dq_lanes = tables_.dq_lanes,
                                .dk_lanes = frequency_ ? tables_.dk_lanes : Tensor{},
                                .dslope = dlambda ? tables_.dslope : Tensor{},
                                .alpha = alpha_->value,
                                .beta = beta_->value,
                                .fourier = fourier(),
                                .positions = tables_.relative.positions});
  if (rho_) device.run(SoftplusBackward{.dx = rho_->grad, .dout = dlambda, .x = rho_->value});
  device.run(SinkBackward{.dw1 = w1_->grad,
                          .db1 = b1_->grad,
                          .dw2 = w2_->grad,
                          .dbump = bump_->grad,
                          .dkey_bias_sum = tables_.dkey_bias_sum,
                          .dkey_bias = gradients.dkey_bias,
                          .hidden = hidden_,
                          .features = tables_.sink_features,
                          .w2 = w2_->value});
}

class GoatPart final : public PositionalPart {
 public:
  explicit GoatPart(const Config& config) : config_(config) {}
  void plan(const PassPlan& plan) override { tables_.plan(plan); }
  void fill_tables(Device& device) const override { tables_.fill(config_, device); }
  bool reads_dkey_bias() const override { return true; }
  std::unique_ptr<PositionalLayer> layer(const ParameterSet& parameters,
                                         const std::string& prefix) const override {
    return std::make_unique<GoatLayer>(config_, tables_, parameters, prefix + "prior.");
  }

 private:
  const Config config_;
  GoatTables tables_;
};

}  // namespace

// Initial values: goat.md, "Initialisations".
void declare_goat(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  const auto& prior = config.prior;
  const std::int64_t heads = config.model.heads, kv_heads = config.kv_heads(), hidden = config.sink_hidden();
  const bool random = prior.init != "zero";
  const double sink_std = prior.sink_init_scale;
  const auto declare = [&](const char* name, std::vector<std::int64_t> shape, Initial initial) {
    parameters.declare(prefix + "prior." + name, std::move(shape), ParameterRole::vector, std::move(initial),
                       static_cast<float>(prior.lr_scale));
  };

  const Initial fourier{.std = random ? 1e-2 : 0.0};
  declare("alpha", {heads, prior.pos_rank}, fourier);
  declare("beta", {heads, prior.pos_rank}, prior.init == "random" ? fourier : Initial{});
  declare("bump", {kv_heads}, {});
  declare("sink.w1", {hidden, config.sink_features()}, {.std = sink_std});
  declare("sink.b1", {hidden}, {});
  declare("sink.w2", {kv_heads, hidden}, {.std = random ? sink_std : 0.0});
  if (prior.learned_frequencies)
    declare("frequency", {prior.pos_rank}, {.values = fourier_frequencies(prior.pos_rank, prior.base)});
  if (prior.recency == "off") return;

  Initial slope;
  if (prior.init == "alibi") slope.values = alibi_slopes(heads);
  if (prior.recency == "softplus") {
    slope.constant = zero_softplus_slope;
    for (double& value : slope.values) value = inverse_softplus(value);
  }
  declare("slope", {heads}, slope);
}

std::unique_ptr<PositionalPart> make_goat(const Config& config, const ParameterSet&) {
  return std::make_unique<GoatPart>(config);
}

}  // namespace goat
