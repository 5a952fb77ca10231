#include "test/model_oracle.h"

#include <cmath>
#include <numbers>
#include <random>

#include "kernels/prior_setup.h"
#include "test/prior_oracle.h"
#include "train/config/config.h"

namespace goat::test {

namespace {
using Matrix = std::vector<double>;  // row-major

Matrix linear(const Matrix& x, const Matrix& weight, const Matrix& bias, std::int64_t inputs,
              std::int64_t outputs) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / inputs;
  Matrix y(static_cast<std::size_t>(rows * outputs));
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t o = 0; o < outputs; ++o) {
      double sum = bias.empty() ? 0 : bias[static_cast<std::size_t>(o)];
      for (std::int64_t i = 0; i < inputs; ++i)
        sum += x[static_cast<std::size_t>(n * inputs + i)] * weight[static_cast<std::size_t>(o * inputs + i)];
      y[static_cast<std::size_t>(n * outputs + o)] = sum;
    }
  return y;
}

Matrix layernorm(const Matrix& x, const Matrix& weight, const Matrix& bias) {
  const std::size_t width = weight.size();
  Matrix y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < width; ++c) mean += x[row + c] / static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c)
      variance += (x[row + c] - mean) * (x[row + c] - mean) / static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c)
      y[row + c] = (x[row + c] - mean) / std::sqrt(variance + 1e-5) * weight[c] + bias[c];
  }
  return y;
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// K [T, T] of one head, or zeros where there is no prior.
Matrix head_prior(const Config& config, const StoredValues& tensors, const std::string& prefix,
                  std::int64_t head) {
  const std::int64_t length = config.data.seq_len;
  if (!config.has_prior()) return Matrix(static_cast<std::size_t>(length * length));
  const auto at = [&](const char* name) -> const Matrix& { return tensors.at(prefix + "prior." + name); };
  const auto row = [&](const Matrix& m, std::int64_t columns) {
    return Matrix(m.begin() + head * columns, m.begin() + (head + 1) * columns);
  };
  const Positions positions = Positions::sequence(0, length);
  const SinkMlp sink{at("sink.w1"), at("sink.b1"), at("sink.w2"), at("bump")};
  const Matrix features = sink_features(fourier_frequencies(config.prior.abs_rank, config.prior.abs_base),
                                        positions, static_cast<double>(config.data.seq_len));
  HeadPrior prior;
  prior.alpha = row(at("alpha"), config.prior.pos_rank);
  prior.beta = row(at("beta"), config.prior.pos_rank);
  prior.frequency = config.prior.learned_frequencies
                        ? at("frequency")
                        : fourier_frequencies(config.prior.pos_rank, config.prior.base);
  prior.key_bias = row(sink.key_bias(features), length);
  if (config.prior.recency != "off") {
    const double slope = at("slope")[static_cast<std::size_t>(head)];
    prior.slope = config.prior.recency == "softplus" ? std::log1p(std::exp(slope)) : slope;
  }
  return prior_matrix(prior, positions);
}

// Causal attention of one sequence and head; q, k have `content` columns, v has `head_dim`; writes columns
// first_column.. of out [T, C].
void attend(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& prior, double scale,
            std::int64_t length, std::int64_t content, std::int64_t head, std::int64_t heads,
            std::int64_t head_dim, Matrix& out) {
  for (std::int64_t i = 0; i < length; ++i) {
    Matrix p(static_cast<std::size_t>(i + 1));
    double total = 0;
    for (std::int64_t j = 0; j <= i; ++j) {
      double z = prior[static_cast<std::size_t>(i * length + j)];
      for (std::int64_t c = 0; c < content; ++c)
        z += scale * q[static_cast<std::size_t>((i * heads + head) * content + c)] *
             k[static_cast<std::size_t>((j * heads + head) * content + c)];
      total += p[static_cast<std::size_t>(j)] = std::exp(z);
    }
    for (std::int64_t d = 0; d < head_dim; ++d) {
      double sum = 0;
      for (std::int64_t j = 0; j <= i; ++j)
        sum += p[static_cast<std::size_t>(j)] / total *
               v[static_cast<std::size_t>((j * heads + head) * head_dim + d)];
      out[static_cast<std::size_t>((i * heads + head) * head_dim + d)] = sum;
    }
  }
}

Matrix attention(const Config& config, const StoredValues& tensors, const std::string& prefix,
                 const Matrix& x) {
  const std::int64_t width = config.model.width, heads = config.model.heads, content = config.content_dim();
  const auto project = [&](const std::string& name, const Matrix& in, std::int64_t outputs) {
    return linear(in, tensors.at(prefix + name + ".weight"), tensors.at(prefix + name + ".bias"), width,
                  outputs);
  };
  const Matrix q = project("q", x, heads * content), k = project("k", x, heads * content),
               v = project("v", x, width);
  const double scale = config.model.attn_scale == "none" ? 1 : 1 / std::sqrt(static_cast<double>(content));
  Matrix out(x.size());
  for (std::int64_t head = 0; head < heads; ++head)
    attend(q, k, v, head_prior(config, tensors, prefix, head), scale, config.data.seq_len, content, head,
           heads, config.head_dim(), out);
  return project("o", out, width);
}

void add(Matrix& x, const Matrix& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// Sum of the losses of one sequence.
double sequence_loss(const Config& config, const StoredValues& tensors, const std::int32_t* inputs,
                     const std::int32_t* targets) {
  const std::int64_t width = config.model.width, length = config.data.seq_len, vocab = config.model.vocab;
  const Matrix& embedding = tensors.at("embedding.weight");
  Matrix x;
  for (std::int64_t t = 0; t < length; ++t)
    x.insert(x.end(), embedding.begin() + inputs[t] * width, embedding.begin() + (inputs[t] + 1) * width);
  for (std::int64_t layer = 0; layer < config.model.layers; ++layer) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    const auto at = [&](const std::string& name) -> const Matrix& { return tensors.at(prefix + name); };
    add(x, attention(config, tensors, prefix + "attn.", layernorm(x, at("norm1.weight"), at("norm1.bias"))));
    Matrix hidden = linear(layernorm(x, at("norm2.weight"), at("norm2.bias")), at("mlp.up.weight"),
                           at("mlp.up.bias"), width, config.ff_width());
    for (double& value : hidden) value = gelu(value);
    add(x, linear(hidden, at("mlp.down.weight"), at("mlp.down.bias"), config.ff_width(), width));
  }
  const Matrix logits = linear(layernorm(x, tensors.at("final_norm.weight"), tensors.at("final_norm.bias")),
                               embedding, {}, width, vocab);
  double loss = 0;
  for (std::int64_t t = 0; t < length; ++t) {
    double total = 0;
    for (std::int64_t token = 0; token < vocab; ++token)
      total += std::exp(logits[static_cast<std::size_t>(t * vocab + token)]);
    loss += std::log(total) - logits[static_cast<std::size_t>(t * vocab + targets[t])];
  }
  return loss;
}
}  // namespace

StoredValues randomize(Device& device, ParameterSet& parameters, std::uint64_t seed) {
  parameters.initialize(device, seed);
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

double model_loss(const Config& config, const StoredValues& tensors, const std::vector<std::int32_t>& inputs,
                  const std::vector<std::int32_t>& targets) {
  const auto length = static_cast<std::size_t>(config.data.seq_len);
  double loss = 0;
  for (std::size_t first = 0; first < inputs.size(); first += length)
    loss += sequence_loss(config, tensors, inputs.data() + first, targets.data() + first);
  return loss / static_cast<double>(inputs.size());
}

}  // namespace goat::test
