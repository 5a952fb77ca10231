#include "train/model/model_parameters.h"

#include "train/model/block_spec.h"
#include "train/positions/positional_part.h"

namespace goat {

namespace {
constexpr double weight_std = 0.02;

// Packed QKV projection [H + 2 H_k, d_h, C]: the heads of q, then those of k, then those of v. q and k use
// the first d_c rows of a head. The other rows produce the coordinates that the lanes overwrite, and stay
// zero.
void declare_qkv(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  const std::int64_t heads = config.model.heads, kv_heads = config.kv_heads(), width = config.model.width,
                     head_dim = config.head_dim(), content = config.content_dim();
  const Parameter& weight = parameters.declare_packed(
      prefix + "qkv.weight", {config.qkv_heads(), head_dim, width}, ParameterRole::matrix);
  const Parameter* bias = block_spec(config).biases
                              ? &parameters.declare_packed(
                                    prefix + "qkv.bias", {config.qkv_heads(), head_dim}, ParameterRole::bias)
                              : nullptr;
  struct Part {
    const char* name;
    std::int64_t first, heads, rows;  // its heads, and the rows of each that are stored
  };
  for (const Part& part : {Part{"q", 0, heads, content}, Part{"k", heads, kv_heads, content},
                           Part{"v", heads + kv_heads, kv_heads, head_dim}}) {
    const auto stored = [&](const Tensor& packed) {
      return packed.slice(0, part.first, part.heads).slice(1, 0, part.rows);
    };
    parameters.store(weight, prefix + part.name + ".weight", {part.heads * part.rows, width},
                     stored(weight.value), part.first * head_dim * width, {.std = weight_std});
    if (bias)
      parameters.store(*bias, prefix + part.name + ".bias", {part.heads * part.rows}, stored(bias->value),
                       part.first * head_dim, {});
  }
}

// The norms of q and k, [d_h] on the device, where q and k are padded with zeros.
void declare_qk_norms(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  for (const char* name : {"q_norm", "k_norm"}) {
    const std::string norm = prefix + name;
    const Parameter& padded =
        parameters.declare_packed(norm + ".padded", {config.head_dim()}, ParameterRole::vector);
    parameters.store(padded, norm + ".weight", {config.content_dim()},
                     padded.value.slice(0, 0, config.content_dim()), 0, {.constant = 1});
  }
}

void declare_norm(const Config& config, const std::string& name, ParameterSet& parameters) {
  parameters.declare(name + ".weight", {config.model.width}, ParameterRole::vector, {.constant = 1});
  if (block_spec(config).norm == NormKind::layer && block_spec(config).biases)
    parameters.declare(name + ".bias", {config.model.width}, ParameterRole::vector, {});
}

void declare_linear(const Config& config, const std::string& name, std::int64_t outputs, std::int64_t inputs,
                    ParameterSet& parameters) {
  parameters.declare(name + ".weight", {outputs, inputs}, ParameterRole::matrix, {.std = weight_std});
  if (block_spec(config).biases) parameters.declare(name + ".bias", {outputs}, ParameterRole::bias, {});
}

// gate and up of a gated MLP have one packed weight [2, F, C] and bias [2, F], so that one GEMM computes
// both.
void declare_gate_up(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  const std::int64_t hidden = config.ff_width(), width = config.model.width;
  const Parameter& weight =
      parameters.declare_packed(prefix + "gate_up.weight", {2, hidden, width}, ParameterRole::matrix);
  const Parameter* bias =
      block_spec(config).biases
          ? &parameters.declare_packed(prefix + "gate_up.bias", {2, hidden}, ParameterRole::bias)
          : nullptr;
  const char* names[] = {"gate", "up"};
  for (int i = 0; i < 2; ++i) {
    parameters.store(weight, prefix + names[i] + ".weight", {hidden, width}, weight.value.select(0, i),
                     i * hidden * width, {.std = weight_std});
    if (bias)
      parameters.store(*bias, prefix + names[i] + ".bias", {hidden}, bias->value.select(0, i), i * hidden,
                       {});
  }
}

void declare_mlp(const Config& config, const std::string& prefix, ParameterSet& parameters) {
  const std::int64_t hidden = config.ff_width(), width = config.model.width;
  if (block_spec(config).mlp == MlpKind::gelu)
    declare_linear(config, prefix + "up", hidden, width, parameters);
  else
    declare_gate_up(config, prefix, parameters);
  declare_linear(config, prefix + "down", width, hidden, parameters);
}

// [V, C], on the device with padded_vocab rows.
void declare_vocabulary(const Config& config, const std::string& name, ParameterSet& parameters) {
  const std::int64_t vocab = config.model.vocab, width = config.model.width;
  const Parameter& padded =
      parameters.declare_packed(name + ".padded", {padded_vocab(config), width}, ParameterRole::matrix);
  parameters.store(padded, name + ".weight", {vocab, width}, padded.value.slice(0, 0, vocab), 0,
                   {.std = weight_std});
}
}  // namespace

std::string block_prefix(std::int64_t layer) { return "blocks." + std::to_string(layer) + "."; }

std::int64_t padded_vocab(const Config& config) { return (config.model.vocab + 63) / 64 * 64; }

DType model_dtype(const Config& config, const Device& device) {
  return config.model.precision == "fp32" || device.info().name == "cpu" ? DType::f32 : DType::bf16;
}

void declare_parameters(const Config& config, ParameterSet& parameters) {
  const std::int64_t width = config.model.width;
  const std::vector<PositionalKind> kinds = positional_kinds(config);
  declare_vocabulary(config, "embedding", parameters);  // the first unit
  for (const PositionalKind& kind : kinds)
    if (kind.declare_shared) kind.declare_shared(config, parameters);
  for (std::int64_t layer = 0; layer < config.model.layers; ++layer) {
    const std::string prefix = block_prefix(layer);
    parameters.begin_unit();
    declare_norm(config, prefix + "norm1", parameters);
    declare_qkv(config, prefix + "attn.", parameters);
    if (config.model.qk_norm) declare_qk_norms(config, prefix + "attn.", parameters);
    for (const PositionalKind& kind : kinds)
      if (kind.declare) kind.declare(config, prefix + "attn.", parameters);
    declare_linear(config, prefix + "attn.o", width, width, parameters);
    declare_norm(config, prefix + "norm2", parameters);
    declare_mlp(config, prefix + "mlp.", parameters);
  }
  parameters.begin_unit();
  declare_norm(config, "final_norm", parameters);
  if (!config.model.tied) declare_vocabulary(config, "head", parameters);
}

ParameterCounts count_parameters(const Config& config) {
  ParameterSet parameters;
  declare_parameters(config, parameters);
  ParameterCounts counts;
  for (const StoredTensor& tensor : parameters.stored()) {
    counts.trainable += tensor.layout.elements();
    if (tensor.name.find(".prior.") != std::string::npos) counts.prior += tensor.layout.elements();
  }
  const std::int64_t lane_rows =
      config.model.layers * (config.model.heads + config.kv_heads()) * config.lane_dim();
  counts.full_projections =
      counts.trainable - counts.prior + lane_rows * (config.model.width + block_spec(config).biases);
  return counts;
}

double flops_per_token(const Config& config) {
  const auto width = static_cast<double>(config.model.width),
             layers = static_cast<double>(config.model.layers);
  const auto length = static_cast<double>(config.data.seq_len);
  const std::int64_t heads = config.model.heads, kv_heads = config.kv_heads();
  const auto rows = static_cast<double>((heads + kv_heads) * config.content_dim() +
                                        kv_heads * config.head_dim());  // of q, k and v
  const double qkvo = width * rows + width * width;
  const double mlp =
      (block_spec(config).mlp == MlpKind::swiglu ? 3 : 2) * width * static_cast<double>(config.ff_width());
  const double gates = config.has_part("forget") ? static_cast<double>(config.model.heads) * width : 0;
  const double matmul = layers * (qkvo + mlp + gates) + static_cast<double>(config.model.vocab) * width;
  return 6 * matmul + 6 * layers * width * length;
}

}  // namespace goat
