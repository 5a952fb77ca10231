#include "test/model_oracle.h"

#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/prior_setup.h"
#include "test/layer_oracle.h"
#include "test/prior_oracle.h"
#include "train/config/config.h"

namespace goat::test {

namespace {
void add(Matrix& x, const Matrix& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// The model over one sequence, x [T, C].
class NaiveModel {
 public:
  NaiveModel(const Config& config, const StoredValues& tensors) : config_(config), tensors_(tensors) {}

  void append_losses(std::vector<double>& losses, const std::int32_t* inputs,
                     const std::int32_t* targets) const {
    const auto vocab = static_cast<std::size_t>(config_.model.vocab);
    const Matrix logits = logits_of(inputs);
    for (std::size_t row = 0; row < logits.size(); row += vocab) {
      const std::int32_t target = *targets++;
      double total = 0;
      for (std::size_t token = 0; token < vocab; ++token) total += std::exp(logits[row + token]);
      losses.push_back(target < 0 ? 0 : std::log(total) - logits[row + static_cast<std::size_t>(target)]);
    }
  }

 private:
  Matrix logits_of(const std::int32_t* inputs) const {
    const std::int64_t width = config_.model.width;
    const Matrix& embedding = at("embedding.weight");
    Matrix x;
    for (std::int64_t t = 0; t < config_.data.seq_len; ++t)
      x.insert(x.end(), embedding.begin() + inputs[t] * width, embedding.begin() + (inputs[t] + 1) * width);
    if (config_.has_part("sinusoidal")) add(x, sinusoids(config_.data.seq_len, width));
    if (config_.has_part("learned")) add(x, at("position_embedding.weight"));
    for (std::int64_t layer = 0; layer < config_.model.layers; ++layer) {
      const std::string block = "blocks." + std::to_string(layer) + ".";
      add(x, attention(block + "attn.", norm(block + "norm1", x)));
      add(x, mlp(block + "mlp.", norm(block + "norm2", x)));
    }
    return linear(norm("final_norm", x), config_.model.tied ? embedding : at("head.weight"), {}, width);
  }

  Matrix mlp(const std::string& prefix, const Matrix& x) const {
    Matrix hidden = project(prefix + "up", x, config_.model.width);
    if (is_llama()) {
      const Matrix gate = project(prefix + "gate", x, config_.model.width);
      for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] *= silu(gate[i]);
    } else {
      for (double& value : hidden) value = gelu(value);
    }
    return project(prefix + "down", hidden, config_.ff_width());
  }

  // [T, C]: sin and cos of position / 10000^(2i/C), in turn, divided by sqrt(C)
  static Matrix sinusoids(std::int64_t length, std::int64_t width) {
    const auto columns = static_cast<double>(width);
    Matrix rows;
    for (std::int64_t p = 0; p < length; ++p)
      for (std::int64_t c = 0; c < width; ++c) {
        const double i = std::floor(static_cast<double>(c) / 2),
                     angle = static_cast<double>(p) / std::pow(10000, 2 * i / columns);
        rows.push_back((c % 2 == 1 ? std::cos(angle) : std::sin(angle)) / std::sqrt(columns));
      }
    return rows;
  }

  // Every pass of this model is as long as training, where rope_pi is rope.
  Matrix turned(const Matrix& x, std::int64_t heads) const {
    if (!config_.has_part("rope") && !config_.has_part("rope_pi")) return x;
    const double fraction = config_.model.rope_fraction;
    const std::int64_t content = config_.content_dim();
    const Turn turn{.dim = 2 * std::lround(fraction * static_cast<double>(content) / 2)};
    return rotated(x, heads, content, config_.model.rope_base, turn);
  }

  // q or k as attention reads it, but for the prior: [T, heads, d_c].
  Matrix query_or_key(const std::string& name, const Matrix& x, std::int64_t heads) const {
    Matrix y = project(name, x, config_.model.width);
    if (config_.model.qk_norm) y = rmsnorm(y, at(name + "_norm.weight"), config_.model.norm_eps);
    return turned(y, heads);
  }

  Matrix attention(const std::string& prefix, const Matrix& x) const {
    const std::int64_t width = config_.model.width, heads = config_.model.heads;
    const Matrix q = query_or_key(prefix + "q", x, heads), k = query_or_key(prefix + "k", x, heads / group());
    std::vector<Matrix> prior;
    for (std::int64_t head = 0; head < heads; ++head) {
      prior.push_back(head_prior(prefix + "prior.", head));
      if (config_.has_part("forget")) add(prior.back(), forgotten(prefix + "forget.", head, x));
    }
    const double scale =
        config_.model.attn_scale == "none" ? 1 : 1 / std::sqrt(static_cast<double>(config_.content_dim()));
    const Matrix v = project(prefix + "v", x, width);
    return project(prefix + "o", causal_attention(q, k, v, prior, config_.data.seq_len, scale, group()),
                   width);
  }

  // sum over l = j+1 .. i of log sigmoid(gate_l), [T, T], 0 where j >= i
  Matrix forgotten(const std::string& prefix, std::int64_t head, const Matrix& x) const {
    const std::int64_t width = config_.model.width, length = config_.data.seq_len;
    const Matrix gate = linear(x, at(prefix + "weight"), at(prefix + "bias"), width);
    Matrix rows;
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t j = 0; j < length; ++j) {
        double sum = 0;
        for (std::int64_t l = j + 1; l <= i; ++l)
          sum -= std::log1p(std::exp(-gate[static_cast<std::size_t>(l * config_.model.heads + head)]));
        rows.push_back(sum);
      }
    return rows;
  }

  std::int64_t group() const {
    return config_.model.kv_heads == 0 ? 1 : config_.model.heads / config_.model.kv_heads;
  }

  // K [T, T] of one head.
  Matrix head_prior(const std::string& prefix, std::int64_t head) const {
    const std::int64_t length = config_.data.seq_len;
    if (!config_.has_prior()) return penalty(head_slope(prefix, head));
    const auto row_of = [](const Matrix& m, std::int64_t index, std::int64_t columns) {
      return Matrix(m.begin() + index * columns, m.begin() + (index + 1) * columns);
    };
    const auto& setting = config_.prior;
    const Positions positions = Positions::sequence(0, length);
    const SinkMlp sink{at(prefix + "sink.w1"), at(prefix + "sink.b1"), at(prefix + "sink.w2"),
                       at(prefix + "bump")};
    const Matrix features = sink_features(fourier_frequencies(setting.abs_rank, setting.abs_base), positions,
                                          static_cast<double>(length));
    HeadPrior prior;
    prior.alpha = row_of(at(prefix + "alpha"), head, setting.pos_rank);
    prior.beta = row_of(at(prefix + "beta"), head, setting.pos_rank);
    prior.frequency = setting.learned_frequencies ? at(prefix + "frequency")
                                                  : fourier_frequencies(setting.pos_rank, setting.base);
    prior.key_bias = row_of(sink.key_bias(features), head / group(), length);
    prior.slope = head_slope(prefix, head);
    return prior_matrix(prior, positions);
  }

  // Of goat, ALiBi or trained ALiBi; 0 where there is none.
  double head_slope(const std::string& prefix, std::int64_t head) const {
    if (config_.has_part("alibi")) {
      // 2^(-8/H), 2^(-16/H), .. for H heads, if H is a power of two; those of 2 heads, then the first,
      // third, .. of 4 heads, for 3.
      const auto heads = static_cast<double>(config_.model.heads);
      if (config_.model.heads == 3)
        return std::array{1.0 / 16, 1.0 / 256, 1.0 / 4}[static_cast<std::size_t>(head)];
      return std::pow(2, -8 * static_cast<double>(head + 1) / heads);
    }
    const bool trained = config_.has_part("alibi_learned");
    if (!trained && (!config_.has_prior() || config_.prior.recency == "off")) return 0;
    const double slope = at(prefix + "slope")[static_cast<std::size_t>(head)];
    return trained || config_.prior.recency == "softplus" ? std::log1p(std::exp(slope)) : slope;
  }

  // -slope (i - j), [T, T]
  Matrix penalty(double slope) const {
    const std::int64_t length = config_.data.seq_len;
    Matrix rows;
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t j = 0; j < length; ++j) rows.push_back(-slope * static_cast<double>(i - j));
    return rows;
  }

  Matrix norm(const std::string& name, const Matrix& x) const {
    const double eps = config_.model.norm_eps;
    return is_llama() ? rmsnorm(x, at(name + ".weight"), eps)
                      : layernorm(x, at(name + ".weight"), bias(name), eps);
  }
  Matrix project(const std::string& name, const Matrix& x, std::int64_t inputs) const {
    return linear(x, at(name + ".weight"), bias(name), inputs);
  }
  Matrix bias(const std::string& name) const {
    const bool has_biases = config_.model.bias == "auto" ? !is_llama() : config_.model.bias == "true";
    return has_biases ? at(name + ".bias") : Matrix{};
  }

  bool is_llama() const { return config_.model.block == "llama"; }
  const Matrix& at(const std::string& name) const { return tensors_.at(name); }

  const Config& config_;
  const StoredValues& tensors_;
};
}  // namespace

StoredValues add_noise(Device& device, const ParameterSet& parameters, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> noise(0, 0.2f);
  StoredValues stored;
  for (const StoredTensor& tensor : parameters.stored()) {
    std::vector<float> values = parameters.read(device, tensor);
    for (float& value : values) value += noise(rng);
    parameters.write(device, tensor, values);
    stored[tensor.name] = std::vector<double>(values.begin(), values.end());
  }
  return stored;
}

StoredValues randomize(Device& device, ParameterSet& parameters, std::uint64_t seed) {
  parameters.initialize(device, seed);
  return add_noise(device, parameters, seed);
}

std::vector<double> token_losses(const Config& config, const StoredValues& tensors,
                                 const std::vector<std::int32_t>& inputs,
                                 const std::vector<std::int32_t>& targets) {
  const auto length = static_cast<std::size_t>(config.data.seq_len);
  const NaiveModel model(config, tensors);
  std::vector<double> losses;
  for (std::size_t first = 0; first < inputs.size(); first += length)
    model.append_losses(losses, inputs.data() + first, targets.data() + first);
  return losses;
}

double model_loss(const Config& config, const StoredValues& tensors, const std::vector<std::int32_t>& inputs,
                  const std::vector<std::int32_t>& targets) {
  const std::vector<double> losses = token_losses(config, tensors, inputs, targets);
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

}  // namespace goat::test
