#include "train/model/model_parameters.h"

#include "kernels/prior_setup.h"

namespace goat {

namespace {
constexpr double weight_std = 0.02;
// softplus(-30) = 1e-13: practically no slope. Its gradient is as small, so that (unlike a free slope of 0)
// it cannot be learned.
constexpr double zero_softplus_slope = -30;

bool has_biases(const Config& config) { return config.model.block == "gpt"; }
// SwiGLU: down(silu(gate) * up)
bool has_gate(const Config& config) { return config.model.block == "llama"; }

// Parameters of the prior in one layer's attention (goat.md "Initialisations"), without weight decay.
void declare_prior(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  const auto& prior = config.prior;
  const std::int64_t heads = config.model.heads, hidden = config.sink_hidden();
  const bool random = prior.init != "zero";
  const double sink_std = prior.sink_init_scale;

  const Initial fourier{.std = random ? 1e-2 : 0.0};
  parameters.declare(prefix + "alpha", {heads, prior.pos_rank}, false, fourier);
  parameters.declare(prefix + "beta", {heads, prior.pos_rank}, false,
                     prior.init == "random" ? fourier : Initial{});
  parameters.declare(prefix + "bump", {heads}, false, {});
  parameters.declare(prefix + "sink.w1", {hidden, config.sink_features()}, false, {.std = sink_std});
  parameters.declare(prefix + "sink.b1", {hidden}, false, {});
  parameters.declare(prefix + "sink.w2", {heads, hidden}, false, {.std = random ? sink_std : 0.0});
  if (prior.learned_frequencies)
    parameters.declare(prefix + "frequency", {prior.pos_rank}, false,
                       {.values = fourier_frequencies(prior.pos_rank, prior.base)});
  if (prior.recency == "off") return;

  Initial slope;
  if (prior.init == "alibi") slope.values = alibi_slopes(heads);
  if (prior.recency == "softplus") {
    slope.constant = zero_softplus_slope;
    for (double& value : slope.values) value = inverse_softplus(value);
  }
  parameters.declare(prefix + "slope", {heads}, false, slope);
}

// Packed QKV projection [3, H, d_h, C]. q and k use the first d_c rows of a head. The other rows produce the
// coordinates that the lanes overwrite, and stay zero.
void declare_qkv(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  const std::int64_t heads = config.model.heads, width = config.model.width, head_dim = config.head_dim(),
                     content = config.content_dim();
  const Parameter& weight =
      parameters.declare_packed(prefix + "qkv.weight", {3, heads, head_dim, width}, true);
  const Parameter* bias = has_biases(config)
                              ? &parameters.declare_packed(prefix + "qkv.bias", {3, heads, head_dim}, false)
                              : nullptr;
  const char* names[] = {"q", "k", "v"};
  for (int i = 0; i < 3; ++i) {
    const std::int64_t rows = i == 2 ? head_dim : content;
    parameters.store(weight, prefix + names[i] + ".weight", {heads * rows, width},
                     weight.value.select(0, i).slice(1, 0, rows), i * heads * head_dim * width,
                     {.std = weight_std});
    if (bias)
      parameters.store(*bias, prefix + names[i] + ".bias", {heads * rows},
                       bias->value.select(0, i).slice(1, 0, rows), i * heads * head_dim, {});
  }
}

// LayerNorm, or RMSNorm (without bias) in llama blocks.
void declare_norm(const Config& config, const std::string& name, ParameterSet& parameters) {
  parameters.declare(name + ".weight", {config.model.width}, false, {.constant = 1});
  if (has_biases(config)) parameters.declare(name + ".bias", {config.model.width}, false, {});
}

void declare_linear(const Config& config, const std::string& name, std::int64_t outputs, std::int64_t inputs,
                    ParameterSet& parameters) {
  parameters.declare(name + ".weight", {outputs, inputs}, true, {.std = weight_std});
  if (has_biases(config)) parameters.declare(name + ".bias", {outputs}, false, {});
}
}  // namespace

std::int64_t padded_vocab(const Config& config) { return (config.model.vocab + 63) / 64 * 64; }

void declare_parameters(const Config& config, ParameterSet& parameters) {
  const std::int64_t width = config.model.width;
  const Parameter& embedding =
      parameters.declare_packed("embedding.padded", {padded_vocab(config), width}, true);
  parameters.store(embedding, "embedding.weight", {config.model.vocab, width},
                   embedding.value.slice(0, 0, config.model.vocab), 0, {.std = weight_std});

  for (std::int64_t layer = 0; layer < config.model.layers; ++layer) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    declare_norm(config, prefix + "norm1", parameters);
    declare_qkv(config, prefix + "attn.", parameters);
    if (config.has_prior()) declare_prior(config, prefix + "attn.prior.", parameters);
    declare_linear(config, prefix + "attn.o", width, width, parameters);
    declare_norm(config, prefix + "norm2", parameters);
    if (has_gate(config)) declare_linear(config, prefix + "mlp.gate", config.ff_width(), width, parameters);
    declare_linear(config, prefix + "mlp.up", config.ff_width(), width, parameters);
    declare_linear(config, prefix + "mlp.down", width, config.ff_width(), parameters);
  }
  declare_norm(config, "final_norm", parameters);
}

ParameterCounts count_parameters(const Config& config) {
  ParameterSet parameters;
  declare_parameters(config, parameters);
  ParameterCounts counts;
  for (const StoredTensor& tensor : parameters.stored()) {
    counts.trainable += tensor.layout.elements();
    if (tensor.name.find(".prior.") != std::string::npos) counts.prior += tensor.layout.elements();
  }
  const std::int64_t lane_rows = 2 * config.model.layers * config.model.heads * config.lane_dim();
  counts.full_projections =
      counts.trainable - counts.prior + lane_rows * (config.model.width + has_biases(config));
  return counts;
}

double flops_per_token(const Config& config) {
  const auto width = static_cast<double>(config.model.width),
             layers = static_cast<double>(config.model.layers);
  const auto length = static_cast<double>(config.data.seq_len),
             content = static_cast<double>(config.model.heads * config.content_dim());
  const double qkvo = 2 * width * content + 2 * width * width;
  const double mlp = (has_gate(config) ? 3 : 2) * width * static_cast<double>(config.ff_width());
  const double matmul = layers * (qkvo + mlp) + static_cast<double>(config.model.vocab) * width;
  return 6 * matmul + 6 * layers * width * length;
}

}  // namespace goat
