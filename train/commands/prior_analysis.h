// What an attention prior has learned, in float64 from its stored weights: its curves, its spectrum, and the
// causal distribution softmax(K).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace goat {

// One layer's prior: the stored weights, and what the config adds to them. Row-major.
struct PriorWeights {
  std::int64_t heads = 0;
  std::vector<double> alpha, beta;  // [H, R]
  std::vector<double> frequency;    // w [R]
  std::vector<double>
      slope;  // lambda [H]: after softplus where that is the parametrisation, 0 without recency
  std::vector<double> bump;                // b [H]
  std::vector<double> w1, b1, w2;          // g(phi) = w2 silu(w1 phi + b1): [n, 2M+2], [n], [H, n]
  std::vector<double> absolute_frequency;  // of phi [M]
  std::int64_t train_length = 0;           // L_train of phi
};

// The log-prior of one head over T positions: K_ij = relative[i - j] + sink[j] for j <= i. Views.
struct LogPrior {
  std::span<const double> sink;      // u(j) [T]
  std::span<const double> relative;  // kappa(d) [T]
  std::int64_t length() const { return static_cast<std::int64_t>(sink.size()); }
  double at(std::int64_t i, std::int64_t j) const {
    return relative[static_cast<std::size_t>(i - j)] + sink[static_cast<std::size_t>(j)];
  }
};

// The curves of every head, [L, H, T] each:
//   sink = u(j) = slope + mlp + bump = lambda j + g(phi(j)) + b [j == 0],  relative = kappa(d) = sum_r
//   alpha_r cos(w_r d) + beta_r sin(w_r d).
class PriorCurves {
 public:
  PriorCurves(std::int64_t layers, std::int64_t heads, std::int64_t length);  // all zero: the uniform prior
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
  double outside_first = 0;   // 1 - pi_i0, summed over the other keys: accurate also where it is tiny
  double margin = 0;          // delta_i = K_i0 - max_{0 < j <= i} K_ij; infinite in row 0
  double divergence = 0;      // KL(pi_i || uniform over j <= i), nats

  // Theorem 2 at zero content: 1 - pi_i0 <= i / (e^delta_i + i), where i = L - 1 is the number of the other
  // keys.
  double theorem2_bound(std::int64_t i) const;
  // Psi_i = d pi_i0 / d s_i0 = pi_i0 (1 - pi_i0), s a content logit at zero content: the largest derivative
  // of the first key's probability by any single logit. At most 1 - pi_i0, so theorem 2 bounds it too.
  double sensitivity() const { return (1 - outside_first) * outside_first; }
};
// [T]. `progress` (if given) is told after every row how many keys it has.
std::vector<PriorRow> prior_rows(const LogPrior& prior,
                                 const std::function<void(std::int64_t)>& progress = {});

// Statistics of one head's causal prior; means over the rows i >= first_row = max(1, T / 4), where every key
// has had room to spread.
inline constexpr std::int64_t reported_lags = 9;  // 0 .. 8
struct PriorStatistics {
  std::int64_t first_row = 0;
  double mass_first = 0;  // mean pi_i0
  std::vector<double>
      mass_lag;           // mean pi_i,i-d for d = 0 .. min(8, T - 1); a row shorter than the lag counts as 0
  double divergence = 0;  // mean KL(pi_i || uniform)
  double outside_first = 0;                                 // mean 1 - pi_i0
  double theorem2_bound = 0;                                // mean bound on it
  double sensitivity = 0;                                   // mean Psi_i
  double smallest_margin = 0;                               // min delta_i over the rows i >= first_row
  std::int64_t theorem2_rows = 0, theorem2_violations = 0;  // rows i >= 1, and those whose 1 - pi_i0 or Psi_i
                                                            // exceeds the bound by more than rounding
};
PriorStatistics prior_statistics(const LogPrior& prior, const std::vector<PriorRow>& rows);

// What a head's prior does, by where half or more of its mass lies.
enum class PriorKind { uniform, sink, previous_token, local, long_range };
inline constexpr double uniform_divergence = 0.05;  // nats: below it the prior counts as uniform
PriorKind kind_of(const PriorStatistics& statistics);
const char* name_of(PriorKind kind);

// The relative part's Fourier coefficients in the form of the paper's table. A head's amplitude is sum_r
// sqrt(alpha_r^2 + beta_r^2).
struct Spectrum {
  static constexpr double active_amplitude = 1.0;  // heads above it count as active
  std::vector<double>
      energy;  // [R] share of sum (alpha_r^2 + beta_r^2) over all heads; NaN where every coefficient is 0
  std::vector<double> amplitude;  // [L, H]
  std::vector<double>
      ratio;  // [L, H] |beta| / |alpha| (2-norms over r); infinite where only alpha is 0, NaN where both are
  double smallest = 0, largest = 0, mean = 0,
         deviation = 0;  // of the amplitudes; the deviation is the population's
  std::int64_t active = 0;
  std::int64_t sine_dominated = 0;  // heads with |beta| > |alpha|
  double median_ratio = 0;  // over the heads whose ratio is a number or infinite; NaN if there are none
  struct Layer {
    double mean_amplitude = 0;
    std::int64_t active = 0;
  };
  std::vector<Layer> layers;
};
Spectrum spectrum_of(const std::vector<PriorWeights>& layers);

}  // namespace goat
