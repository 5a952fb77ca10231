// Signal against sink: what attention does on real sequences, query by query, and how far content moves it
// from its prior.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/token_source.h"
#include "train/commands/prior_analysis.h"
#include "train/config/config.h"
#include "train/model/parameters.h"

namespace goat {

// One query i: content logits s_ij = sigma <q_i, k_j>, p_i = softmax over j <= i of s_ij + K_ij.
struct QueryReading {
  static constexpr std::int64_t recent_keys = 128;
  double omega = 0;    // content range: max_j s_ij - min_j s_ij over j <= i
  double first = 0;    // p_i0
  double largest = 0;  // max_j p_ij
  double recent = 0;   // sum of p_ij over the last 128 keys, j > i - 128
  // Theorem 1: pi_ij e^-omega <= p_ij <= pi_ij e^omega, pi the causal prior. Keys where it fails by more than
  // rounding (1e-9 in the logarithm).
  std::int64_t violations = 0;
};

// content: s_ij for j = 0 .. i; log_normaliser: of row i of the prior (PriorRow); scratch: room for i + 1
// numbers.
QueryReading read_query(std::span<const float> content, const LogPrior& prior, double log_normaliser,
                        std::span<double> scratch);

// A head's log-prior with the log-normaliser of each of its rows [T].
struct NormalisedPrior {
  LogPrior log_prior;
  std::span<const double> log_normaliser;
};

struct ProbeReadings {
  static constexpr std::int64_t columns = 4;  // omega, p_0, largest p, mass of the last 128 keys
  std::int64_t layers = 0, heads = 0, sequences = 0, length = 0;
  std::vector<float> values;  // [L, H, S, T, 4]
  std::vector<std::int64_t> theorem1_keys,
      theorem1_violations;  // [L, H] keys compared, and those outside the bounds

  // Mean of a column over all sequences and the queries i >= first_row.
  double mean(std::int64_t layer, std::int64_t head, std::int64_t column, std::int64_t first_row) const;
};

// Runs the model over the first `sequences` sequences of `source`, each as long as the priors. priors: one
// for each head of each layer [L, H]. Memory: the readings, one sequence's activations and O(T d_h) a thread;
// attention matrices are never held. `progress` (if given) is told after every query of a head how many keys
// it has, by any thread.
ProbeReadings probe_attention(const Config& config, const ParameterSet& parameters, Device& device,
                              TokenSource& source, std::int64_t sequences,
                              const std::vector<NormalisedPrior>& priors,
                              const std::function<void(std::int64_t)>& progress = {});

}  // namespace goat
