// The results of `analyze`, as analysis.json and as a summary for the user.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/commands/attention_probe.h"
#include "train/commands/prior_analysis.h"
#include "train/config/config.h"

namespace goat {

// The log-prior of every head: goat's, or ALiBi's slopes.
struct PriorReport {
  std::vector<PriorWeights> weights;  // [L]
  PriorCurves curves;
  std::vector<PriorStatistics> statistics;  // [L, H]
  Spectrum spectrum;                        // empty without a relative part
};

struct AnalysisReport {
  Config config;
  std::string checkpoint;
  std::int64_t step = 0;
  std::int64_t length = 0;
  std::int64_t log_prior_layer = 0, log_prior_head = 0, log_prior_length = 0;
  std::optional<PriorReport> prior;    // only for models that have one
  std::optional<ProbeReadings> probe;  // only if there are validation data
  std::string probe_data;
};

// Quantities that are not finite (the spectrum of an all-zero prior) become null.
nlohmann::json to_json(const AnalysisReport& report);
void print_summary(const AnalysisReport& report);

}  // namespace goat
