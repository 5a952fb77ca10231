#include "train/commands/prior_analysis.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace goat {

namespace {
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// phi(j) [2M+2]
std::vector<double> sink_features(const PriorWeights& weights, double position) {
  const auto train_length = static_cast<double>(weights.train_length);
  std::vector<double> features;
  for (const double w : weights.absolute_frequency) features.push_back(std::cos(w * position));
  for (const double w : weights.absolute_frequency) features.push_back(std::sin(w * position));
  features.push_back(position / train_length);
  features.push_back(std::log1p(position) / std::log1p(train_length));
  return features;
}

double dot(const double* a, const double* b, std::size_t count) {
  return std::inner_product(a, a + count, b, 0.0);
}
double silu(double x) { return x / (1 + std::exp(-x)); }
double norm(const double* values, std::size_t count) { return std::sqrt(dot(values, values, count)); }
}  // namespace

PriorCurves::PriorCurves(std::int64_t layers, std::int64_t heads, std::int64_t length)
    : layers_(layers), heads_(heads), length_(length) {
  for (std::vector<double>* curve : {&slope_, &mlp_, &bump_, &sink_, &relative_})
    curve->assign(index(layers * heads * length), 0.0);
}

std::size_t PriorCurves::offset(std::int64_t layer, std::int64_t head) const {
  if (layer < 0 || layer >= layers_ || head < 0 || head >= heads_)
    throw std::out_of_range("PriorCurves: no such layer or head");
  return index((layer * heads_ + head) * length_);
}

void PriorCurves::evaluate_mlp(std::int64_t layer, const PriorWeights& weights) {
  const std::size_t hidden = weights.b1.size();
  if (hidden == 0) return;
  std::vector<double> active(hidden);
  for (std::int64_t j = 0; j < length_; ++j) {
    const std::vector<double> features = sink_features(weights, static_cast<double>(j));
    for (std::size_t n = 0; n < hidden; ++n)
      active[n] =
          silu(dot(&weights.w1[n * features.size()], features.data(), features.size()) + weights.b1[n]);
    for (std::int64_t h = 0; h < heads_; ++h)
      mlp_[offset(layer, h) + index(j)] = dot(&weights.w2[index(h) * hidden], active.data(), hidden);
  }
}

void PriorCurves::evaluate(std::int64_t layer, const PriorWeights& weights) {
  evaluate_mlp(layer, weights);
  const std::size_t modes = weights.frequency.size();
  for (std::int64_t h = 0; h < heads_; ++h) {
    const std::size_t first = offset(layer, h);
    bump_[first] = weights.bump[index(h)];
    for (std::int64_t t = 0; t < length_; ++t) {
      const auto position = static_cast<double>(t);
      const std::size_t at = first + index(t);
      slope_[at] = weights.slope[index(h)] * position;
      sink_[at] = slope_[at] + mlp_[at] + bump_[at];
      double kappa = 0;
      for (std::size_t r = 0; r < modes; ++r) {
        const double angle = weights.frequency[r] * position;
        kappa += weights.alpha[index(h) * modes + r] * std::cos(angle) +
                 weights.beta[index(h) * modes + r] * std::sin(angle);
      }
      relative_[at] = kappa;
    }
  }
}

LogPrior PriorCurves::log_prior(std::int64_t layer, std::int64_t head) const {
  const std::size_t first = offset(layer, head);
  return {std::span(sink_).subspan(first, index(length_)),
          std::span(relative_).subspan(first, index(length_))};
}

double PriorRow::theorem2_bound(std::int64_t i) const {
  const auto others = static_cast<double>(i);
  return others / (std::exp(margin) + others);
}

namespace {
PriorRow prior_row(const LogPrior& prior, std::int64_t i) {
  const double first = prior.at(i, 0);
  double largest = -infinity;
  for (std::int64_t j = 1; j <= i; ++j) largest = std::max(largest, prior.at(i, j));
  // Sums over the keys j > 0 of e^(K - largest), and of K e^(K - largest).
  double sum = 0, weighted = 0;
  for (std::int64_t j = 1; j <= i; ++j) {
    const double k = prior.at(i, j), weight = std::exp(k - largest);
    sum += weight;
    weighted += weight * k;
  }
  if (i == 0) return {.log_normaliser = first, .outside_first = 0, .margin = infinity, .divergence = 0};
  const double top = std::max(first, largest), others = sum * std::exp(largest - top);
  PriorRow row;
  row.log_normaliser = top + std::log(std::exp(first - top) + others);
  row.outside_first = others / (std::exp(first - top) + others);
  row.margin = first - largest;
  const double mean_log_prior = (1 - row.outside_first) * first + row.outside_first * weighted / sum;
  row.divergence = mean_log_prior - row.log_normaliser + std::log(static_cast<double>(i + 1));
  return row;
}
}  // namespace

std::vector<PriorRow> prior_rows(const LogPrior& prior, const std::function<void(std::int64_t)>& progress) {
  std::vector<PriorRow> rows;
  for (std::int64_t i = 0; i < prior.length(); ++i) {
    rows.push_back(prior_row(prior, i));
    if (progress) progress(i + 1);
  }
  return rows;
}

PriorStatistics prior_statistics(const LogPrior& prior, const std::vector<PriorRow>& rows) {
  constexpr double rounding = 1e-10;  // relative error
  const std::int64_t length = prior.length();
  PriorStatistics s;
  s.first_row = std::max<std::int64_t>(1, length / 4);
  s.mass_lag.resize(index(std::min(reported_lags, length)));
  s.smallest_margin = infinity;
  const double weight = 1 / static_cast<double>(length - s.first_row);
  for (std::int64_t i = 1; i < length; ++i) {
    const PriorRow& row = rows[index(i)];
    const double bound = row.theorem2_bound(i);
    ++s.theorem2_rows;
    // The smallest normal number is added, because subnormal numbers have few digits.
    const double limit = bound * (1 + rounding) + std::numeric_limits<double>::min();
    // Written so that NaN counts.
    if (!(row.outside_first <= limit && row.sensitivity() <= limit)) ++s.theorem2_violations;
    if (i < s.first_row) continue;
    s.mass_first += weight * (1 - row.outside_first);
    for (std::int64_t d = 0; d < std::min(i + 1, std::ssize(s.mass_lag)); ++d)
      s.mass_lag[index(d)] += weight * std::exp(prior.at(i, i - d) - row.log_normaliser);
    s.divergence += weight * row.divergence;
    s.outside_first += weight * row.outside_first;
    s.theorem2_bound += weight * bound;
    s.sensitivity += weight * row.sensitivity();
    s.smallest_margin = std::min(s.smallest_margin, row.margin);
  }
  return s;
}

PriorKind kind_of(const PriorStatistics& statistics) {
  const std::vector<double>& lag = statistics.mass_lag;
  if (statistics.divergence < uniform_divergence) return PriorKind::uniform;
  if (statistics.mass_first >= 0.5) return PriorKind::sink;
  if (lag.size() > 1 && lag[1] >= 0.5) return PriorKind::previous_token;
  if (std::accumulate(lag.begin(), lag.end(), 0.0) >= 0.5) return PriorKind::local;
  return PriorKind::long_range;
}

const char* name_of(PriorKind kind) {
  switch (kind) {
    case PriorKind::uniform: return "uniform";
    case PriorKind::sink: return "sink";
    case PriorKind::previous_token: return "previous token";
    case PriorKind::local: return "local";
    case PriorKind::long_range: return "long range";
  }
  throw std::invalid_argument("name_of: unknown kind of prior");
}

namespace {
// Adds one layer's heads to amplitude, ratio and layers, and their energies (not yet shares) to energy.
void add_layer(Spectrum& spectrum, const PriorWeights& weights) {
  const std::size_t modes = weights.frequency.size();
  Spectrum::Layer layer;
  for (std::size_t h = 0; h < index(weights.heads); ++h) {
    const double *alpha = weights.alpha.data() + h * modes, *beta = weights.beta.data() + h * modes;
    double amplitude = 0;
    for (std::size_t r = 0; r < modes; ++r) {
      const double energy = alpha[r] * alpha[r] + beta[r] * beta[r];
      spectrum.energy[r] += energy;
      amplitude += std::sqrt(energy);
    }
    const double sine = norm(beta, modes), cosine = norm(alpha, modes);
    spectrum.amplitude.push_back(amplitude);
    spectrum.ratio.push_back(cosine > 0 ? sine / cosine : sine > 0 ? infinity : not_a_number);
    spectrum.sine_dominated += sine > cosine;
    layer.mean_amplitude += amplitude / static_cast<double>(weights.heads);
    layer.active += amplitude > Spectrum::active_amplitude;
  }
  spectrum.active += layer.active;
  spectrum.layers.push_back(layer);
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) return not_a_number;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return std::isinf(values[middle]) ? infinity : (values[middle - 1] + values[middle]) / 2;
}
}  // namespace

Spectrum spectrum_of(const std::vector<PriorWeights>& layers) {
  Spectrum spectrum;
  spectrum.energy.assign(layers.at(0).frequency.size(), 0.0);
  for (const PriorWeights& weights : layers) add_layer(spectrum, weights);

  const double total = std::accumulate(spectrum.energy.begin(), spectrum.energy.end(), 0.0);
  for (double& energy : spectrum.energy) energy = total > 0 ? energy / total : not_a_number;
  const std::vector<double>& amplitude = spectrum.amplitude;
  const auto count = static_cast<double>(amplitude.size());
  spectrum.smallest = *std::ranges::min_element(amplitude);
  spectrum.largest = *std::ranges::max_element(amplitude);
  spectrum.mean = std::accumulate(amplitude.begin(), amplitude.end(), 0.0) / count;
  for (const double value : amplitude)
    spectrum.deviation += (value - spectrum.mean) * (value - spectrum.mean) / count;
  spectrum.deviation = std::sqrt(spectrum.deviation);
  spectrum.median_ratio = median(spectrum.ratio);
  return spectrum;
}

}  // namespace goat
