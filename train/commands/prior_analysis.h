// Computes what an attention prior has learned, in float64 from its stored weights: its curves, its spectrum,
// and the causal distribution softmax(K).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace goat {

// One layer's prior: the stored weights, and the constants that the config adds to them. Row-major.
struct PriorWeights {
  std::int64_t heads = 0;
  std::vector<double> alpha, beta;  // [H, R]
  std::vector<double> frequency;    // w [R]
  // lambda [H], after softplus if recency = softplus, and 0 without recency
  std::vector<double> slope;
  std::vector<double> bump;                // b [H]
  std::vector<double> w1, b1, w2;          // g(phi) = w2 silu(w1 phi + b1): [n, 2M+2], [n], [H, n]
  std::vector<double> absolute_frequency;  // frequencies in phi, [M]
  std::int64_t train_length = 0;           // L_train in phi
};

// The log-prior of one head over T positions: K_ij = relative[i - j] + sink[j] for j <= i. Only views.
struct LogPrior {
  std::span<const double> sink;      // u(j) [T]
  std::span<const double> relative;  // kappa(d) [T]
  std::int64_t length() const { return static_cast<std::int64_t>(sink.size()); }
  double at(std::int64_t i, std::int64_t j) const {
    return relative[static_cast<std::size_t>(i - j)] + sink[static_cast<std::size_t>(j)];
  }
};

// The curves of every head, each [L, H, T]:
//   sink = u(j) = slope + mlp + bump = lambda j + g(phi(j)) + b [j == 0],
//   relative = kappa(d) = sum_r alpha_r cos(w_r d) + beta_r sin(w_r d).
class PriorCurves {
 public:
  // All curves are zero, which is the uniform prior.
  PriorCurves(std::int64_t layers, std::int64_t heads, std::int64_t length);
  void evaluate(std::int64_t layer, const PriorWeights& weights);
  LogPrior log_prior(std::int64_t layer, std::int64_t head) const;

  const std::vector<double>& slope() const { return slope_; }
  const std::vector<double>& mlp() const { return mlp_; }
  const std::vector<double>& bump() const { return bump_; }
  const std::vector<double>& sink() const { return sink_; }
  const std::vector<double>& relative() const { return relative_; }
  std::vector<std::int64_t> shape() const { return {layers_, heads_, length_}; }

 private:
  std::size_t offset(std::int64_t layer, std::int64_t head) const;
  void evaluate_mlp(std::int64_t layer, const PriorWeights& weights);

  std::int64_t layers_, heads_, length_;
  std::vector<double> slope_, mlp_, bump_, sink_, relative_;
};

// Row i of the causal prior pi_i = softmax over j <= i of K_i.
struct PriorRow {
  double log_normaliser = 0;  // log sum_{j <= i} e^K_ij
  double outside_first = 0;   // 1 - pi_i0, summed over the other keys, so that it is accurate even if tiny
  double margin = 0;          // delta_i = K_i0 - max_{0 < j <= i} K_ij; infinite in row 0
  double divergence = 0;      // KL(pi_i || uniform over j <= i), nats

  // Theorem 2 at zero content: 1 - pi_i0 <= i / (e^delta_i + i). i is the number of the other keys, L - 1
  // in the paper.
  double theorem2_bound(std::int64_t i) const;
  // Psi_i = d pi_i0 / d s_i0 = pi_i0 (1 - pi_i0), where s is a content logit, at zero content. It is the
  // largest derivative of the first key's probability by any single logit. It is at most 1 - pi_i0, so that
  // theorem 2 bounds it too.
  double sensitivity() const { return (1 - outside_first) * outside_first; }
};
// The rows [T]. `progress` (if given) is called after every row with its number of keys.
std::vector<PriorRow> prior_rows(const LogPrior& prior,
                                 const std::function<void(std::int64_t)>& progress = {});

// Statistics of one head's causal prior. The means are over the rows i >= first_row = max(1, T / 4), in which
// the prior has many keys to choose from.
inline constexpr std::int64_t reported_lags = 9;  // 0 .. 8
struct PriorStatistics {
  std::int64_t first_row = 0;
  double mass_first = 0;  // mean pi_i0
  // mean pi_i,i-d for d = 0 .. min(8, T - 1); a row shorter than the lag counts as 0
  std::vector<double> mass_lag;
  double divergence = 0;       // mean KL(pi_i || uniform)
  double outside_first = 0;    // mean 1 - pi_i0
  double theorem2_bound = 0;   // mean of theorem 2's bound on 1 - pi_i0
  double sensitivity = 0;      // mean Psi_i
  double smallest_margin = 0;  // min delta_i over the rows i >= first_row
  // Number of rows i >= 1, and number of those in which 1 - pi_i0 or Psi_i exceeds the bound by
  // more than rounding.
  std::int64_t theorem2_rows = 0, theorem2_violations = 0;
};
PriorStatistics prior_statistics(const LogPrior& prior, const std::vector<PriorRow>& rows);

// The kind of a head's prior: where half or more of its mass lies.
enum class PriorKind { uniform, sink, previous_token, local, long_range };
inline constexpr double uniform_divergence = 0.05;  // nats; a prior below it counts as uniform
PriorKind kind_of(const PriorStatistics& statistics);
const char* name_of(PriorKind kind);

// The Fourier coefficients of the relative part, as in the paper's table. A head's amplitude is
// sum_r sqrt(alpha_r^2 + beta_r^2).
struct Spectrum {
  static constexpr double active_amplitude = 1.0;  // a head above it counts as active
  // [R], share of sum (alpha_r^2 + beta_r^2) over all heads; NaN if every coefficient is 0
  std::vector<double> energy;
  std::vector<double> amplitude;  // [L, H]
  // [L, H], |beta| / |alpha| (2-norms over r); infinite if only alpha is 0, NaN if both are 0
  std::vector<double> ratio;
  // Statistics of the amplitudes. `deviation` is the population standard deviation.
  double smallest = 0, largest = 0, mean = 0, deviation = 0;
  std::int64_t active = 0;
  std::int64_t sine_dominated = 0;  // number of heads with |beta| > |alpha|
  double median_ratio = 0;          // over the heads whose ratio is not NaN; NaN if there are none
  struct Layer {
    double mean_amplitude = 0;
    std::int64_t active = 0;
  };
  std::vector<Layer> layers;
};
Spectrum spectrum_of(const std::vector<PriorWeights>& layers);

}  // namespace goat
