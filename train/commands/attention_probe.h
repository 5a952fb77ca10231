// Signal against sink: reads the attention of each query on real sequences, and measures how far the content
// moves it from the prior.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/token_source.h"
#include "train/commands/prior_analysis.h"
#include "train/config/config.h"
#include "train/memory/parameters.h"

namespace goat {

// Readings of one query i. Content logits s_ij = sigma <q_i, k_j>; p_i = softmax over j <= i of s_ij + K_ij.
struct QueryReading {
  static constexpr std::int64_t recent_keys = 128;
  double omega = 0;    // content range: max_j s_ij - min_j s_ij over j <= i
  double first = 0;    // p_i0
  double largest = 0;  // max_j p_ij
  double recent = 0;   // sum of p_ij over the last 128 keys, j > i - 128
  // Theorem 1: pi_ij e^-omega <= p_ij <= pi_ij e^omega, where pi is the causal prior. Counts the keys that
  // violate it by more than rounding (1e-9 in the logarithm).
  std::int64_t violations = 0;
};

// content: s_ij for j = 0 .. i. log_normaliser: of row i of the prior (PriorRow). scratch: space
// for i + 1 numbers. key_bias: what the tokens themselves add to the prior, K_ij += key_bias[j] - key_bias[i]
// (AttentionForward), or nothing; log_normaliser is not read with it.
QueryReading read_query(std::span<const float> content, const LogPrior& prior, double log_normaliser,
                        std::span<double> scratch, std::span<const double> key_bias = {});

// A head's log-prior and the log-normaliser of each of its rows, [T].
struct NormalisedPrior {
  LogPrior log_prior;
  std::span<const double> log_normaliser;
};

struct ProbeReadings {
  static constexpr std::int64_t columns = 4;  // omega, p_0, largest p, mass of the last 128 keys
  std::int64_t layers = 0, heads = 0, sequences = 0, length = 0;
  std::vector<float> values;  // [L, H, S, T, 4]
  // [L, H]: number of keys compared, and number of keys outside the bounds
  std::vector<std::int64_t> theorem1_keys, theorem1_violations;

  // Mean of a column over all sequences and over the queries i >= first_row.
  double mean(std::int64_t layer, std::int64_t head, std::int64_t column, std::int64_t first_row) const;
};

// Runs the model over the first `sequences` sequences of `source`. `priors`: one for each head of each layer,
// [L, H]; each sequence is as long as the priors. Memory: the readings, the activations of one sequence, and
// O(T d_h) per thread. Attention matrices are never stored. `progress` (if given) is called after every query
// of a head with its number of keys, from any thread.
ProbeReadings probe_attention(const Config& config, const ParameterSet& parameters, Device& device,
                              TokenSource& source, std::int64_t sequences,
                              const std::vector<NormalisedPrior>& priors,
                              const std::function<void(std::int64_t)>& progress = {});

}  // namespace goat
