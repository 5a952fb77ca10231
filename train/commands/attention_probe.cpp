#include "train/commands/attention_probe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/memory/float_copies.h"
#include "train/model/evaluation.h"

namespace goat {

namespace {
std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
}  // namespace

namespace {
// Row i of a log-prior to which the tokens may add.
struct PriorOfQuery {
  const LogPrior& prior;
  std::span<const double> key_bias;  // empty if they add nothing
  std::int64_t i;

  double at(std::size_t j) const {
    const double own = key_bias.empty() ? 0 : key_bias[j] - key_bias[index(i)];
    return prior.at(i, static_cast<std::int64_t>(j)) + own;
  }
  double log_normaliser() const {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::size_t j = 0; j <= index(i); ++j) top = std::max(top, at(j));
    for (std::size_t j = 0; j <= index(i); ++j) sum += std::exp(at(j) - top);
    return top + std::log(sum);
  }
};
}  // namespace

QueryReading read_query(std::span<const float> content, const LogPrior& prior, double log_normaliser,
                        std::span<double> scratch, std::span<const double> key_bias) {
  const std::size_t keys = content.size();
  const auto i = static_cast<std::int64_t>(keys) - 1;
  const PriorOfQuery row{prior, key_bias, i};
  if (!key_bias.empty()) log_normaliser = row.log_normaliser();
  const std::span<double> logit = scratch.first(keys);
  for (std::size_t j = 0; j < keys; ++j) logit[j] = static_cast<double>(content[j]) + row.at(j);
  const double top = *std::ranges::max_element(logit);
  double sum = 0, recent = 0;
  for (std::size_t j = 0; j < keys; ++j) {
    const double weight = std::exp(logit[j] - top);
    sum += weight;
    if (static_cast<std::int64_t>(j) > i - QueryReading::recent_keys) recent += weight;
  }
  const double log_sum = top + std::log(sum);

  const auto [low, high] = std::ranges::minmax_element(content);
  QueryReading reading;
  reading.omega = static_cast<double>(*high) - static_cast<double>(*low);
  reading.first = std::exp(logit[0] - log_sum);
  reading.largest = 1 / sum;
  reading.recent = recent / sum;
  constexpr double rounding = 1e-9;
  for (std::size_t j = 0; j < keys; ++j) {
    const double log_p = logit[j] - log_sum, log_pi = row.at(j) - log_normaliser;
    // Written so that NaN counts.
    if (!(std::abs(log_p - log_pi) <= reading.omega + rounding)) ++reading.violations;
  }
  return reading;
}

double ProbeReadings::mean(std::int64_t layer, std::int64_t head, std::int64_t column,
                           std::int64_t first_row) const {
  double sum = 0;
  for (std::int64_t s = 0; s < sequences; ++s)
    for (std::int64_t i = first_row; i < length; ++i)
      sum += static_cast<double>(
          values[index((((layer * heads + head) * sequences + s) * length + i) * columns + column)]);
  return sum / static_cast<double>(sequences * (length - first_row));
}

namespace {

// Copies on the host: the vectors of all heads of one sequence, row t from t * row on.
struct HostVectors {
  std::vector<float> values;
  std::int64_t row = 0;

  void download(Device& device, const Tensor& vectors) {  // strided [1, T, heads, d_h]
    row = vectors.stride[1];
    Tensor span = Tensor::contiguous(vectors.data, vectors.dtype, {0}, vectors.name);
    span.shape[0] = (vectors.shape[1] - 1) * row + vectors.shape[2] * vectors.shape[3];
    values.resize(index(span.elements()));
    download_floats(device, values, span);
  }
};

// What attention read in one layer.
struct HostReads {
  HostVectors q, k;
  std::vector<double> key_bias;  // [H, T], or empty

  void download(Device& device, const AttentionReads& reads) {
    q.download(device, reads.q);
    k.download(device, reads.k);
    key_bias.resize(reads.key_bias ? index(reads.key_bias.elements()) : 0);
    if (reads.key_bias) device.download(key_bias.data(), reads.key_bias.data, reads.key_bias.bytes());
  }
};

// Reads every query of one head of one sequence.
class HeadProbe {
 public:
  HeadProbe(const Config& config, const HostReads& reads, std::int64_t length, std::int64_t head)
      : length_(length),
        content_dim_(config.content_dim()),
        q_(index(length * content_dim_)),
        k_(q_.size()),
        content_(index(length)),
        scratch_(content_.size()) {
    const float scale = logit_scale(config);
    const std::int64_t head_dim = config.head_dim(), key_head = head * config.kv_heads() / config.model.heads;
    if (!reads.key_bias.empty())
      key_bias_ = std::span(reads.key_bias).subspan(index(head * length), index(length));
    for (std::int64_t t = 0; t < length; ++t) {
      const float* q = &reads.q.values[index(t * reads.q.row + head * head_dim)];
      const float* k = &reads.k.values[index(t * reads.k.row + key_head * head_dim)];
      for (std::int64_t c = 0; c < content_dim_; ++c) {
        q_[index(t * content_dim_ + c)] = q[c] * scale;
        k_[index(c * length + t)] = k[c];
      }
    }
  }

  QueryReading read(std::int64_t i, const NormalisedPrior& prior) {
    float* s = content_.data();
    std::fill_n(s, i + 1, 0.0f);
    for (std::int64_t c = 0; c < content_dim_; ++c) {
      const float q = q_[index(i * content_dim_ + c)];
      const float* k = &k_[index(c * length_)];
#pragma omp simd
      for (std::int64_t j = 0; j <= i; ++j) s[j] += q * k[j];
    }
    return read_query(std::span(content_).first(index(i + 1)), prior.log_prior,
                      prior.log_normaliser[index(i)], scratch_, key_bias_);
  }

 private:
  std::int64_t length_, content_dim_;
  // q_: sigma q [T, d_c]. k_: k transposed, [d_c, T], so that vector instructions compute the logits of many
  // keys at once.
  std::vector<float> q_, k_;
  std::vector<float> content_;
  std::vector<double> scratch_;
  std::span<const double> key_bias_;  // [T], or empty
};

// Reads one head of one sequence into the readings.
void read_head(ProbeReadings& readings, HeadProbe head, const NormalisedPrior& prior, std::int64_t layer_head,
               std::int64_t sequence, const std::function<void(std::int64_t)>& progress) {
  float* out = &readings.values[index((layer_head * readings.sequences + sequence) * readings.length *
                                      ProbeReadings::columns)];
  for (std::int64_t i = 0; i < readings.length; ++i, out += ProbeReadings::columns) {
    const QueryReading reading = head.read(i, prior);
    const double columns[ProbeReadings::columns] = {reading.omega, reading.first, reading.largest,
                                                    reading.recent};
    std::ranges::transform(columns, out, [](double value) { return static_cast<float>(value); });
    readings.theorem1_keys[index(layer_head)] += i + 1;
    readings.theorem1_violations[index(layer_head)] += reading.violations;
    if (progress) progress(i + 1);
  }
}

ProbeReadings empty_readings(const Config& config, std::int64_t sequences, std::int64_t length) {
  ProbeReadings readings;
  readings.layers = config.model.layers;
  readings.heads = config.model.heads;
  readings.sequences = sequences;
  readings.length = length;
  const std::int64_t heads = readings.layers * readings.heads;
  readings.values.resize(index(heads * sequences * length * ProbeReadings::columns));
  readings.theorem1_keys.resize(index(heads));
  readings.theorem1_violations.resize(index(heads));
  return readings;
}

}  // namespace

ProbeReadings probe_attention(const Config& config, const ParameterSet& parameters, Device& device,
                              TokenSource& source, std::int64_t sequences,
                              const std::vector<NormalisedPrior>& priors,
                              const std::function<void(std::int64_t)>& progress) {
  const std::int64_t heads = config.model.heads, length = priors.at(0).log_prior.length();
  ProbeReadings readings = empty_readings(config, sequences, length);
  ForwardModel forward(config, {1, length}, parameters, device, "Give a smaller --length");
  Model& model = forward.model();

  HostReads host;
  std::int64_t sequence = 0;
  model.set_attention_observer([&](std::int64_t layer, const AttentionReads& reads) {
    host.download(device, reads);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t layer_head = layer * heads + head;
      read_head(readings, HeadProbe(config, host, length, head), priors[index(layer_head)], layer_head,
                sequence, progress);
    }
  });
  std::vector<std::int32_t> inputs(index(length)), targets(index(length));
  for (; sequence < sequences; ++sequence) {
    source.read(static_cast<std::uint64_t>(sequence), inputs, targets);
    model.load(device, inputs, targets);
    model.forward(device);
  }
  return readings;
}

}  // namespace goat
