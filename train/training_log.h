// TrainingLog: what a training run tells: the announcement, progress lines, metrics.jsonl, warnings and summary.json.
#pragma once

#include <optional>
#include <string>

#include "data/token_source.h"
#include "kernels/device.h"
#include "train/config.h"
#include "train/model_parameters.h"
#include "train/progress.h"
#include "train/run_folder.h"

namespace goat {

class TrainingLog {
 public:
  TrainingLog(const Config& config, const Device& device, RunFolder& run);

  // Before the first step; `why` is the reason for the device.
  void announce(const std::string& why, const TokenSource& data, std::size_t memory_bytes);
  // After step `step` (1-based), which took `seconds` without validation.
  void step(std::int64_t step, const StepState& result, double seconds, std::optional<double> validation_loss);
  // At the end: summary.json, and where everything is.
  void finish(const std::filesystem::path& checkpoint, std::optional<double> bayes_optimal_loss);

 private:
  void warn_of_skip(std::int64_t step, const StepState& result) const;

  const Config config_;
  const Device& device_;
  RunFolder& run_;
  ParameterCounts parameters_;
  double flops_per_token_;
  std::int64_t tokens_per_step_;
  Progress progress_;
  std::size_t memory_bytes_ = 0;
  std::int64_t steps_done_ = 0, skipped_ = 0;
  double seconds_ = 0;
  double last_loss_ = 0;
  std::optional<double> last_validation_loss_;
};

}  // namespace goat
