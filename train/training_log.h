// TrainingLog: what a training run tells: the announcement, progress lines, metrics.jsonl, warnings and
// summary.json.
#pragma once

#include <optional>
#include <string>

#include "data/token_source.h"
#include "kernels/device.h"
#include "train/config.h"
#include "train/model_parameters.h"
#include "train/progress.h"
#include "train/run_folder.h"
#include "train/spike_filter.h"

namespace goat {

class TrainingLog {
 public:
  TrainingLog(const Config& config, const Device& device, RunFolder& run);

  // Before the first step; `why` is the reason for the device.
  void announce(const std::string& why, const TokenSource& data, std::size_t memory_bytes);
  void saved(const std::filesystem::path& checkpoint);
  void not_saved(const std::string& reason);  // loudly: training goes on without this checkpoint
  // After step `step` (1-based), which took `seconds` without validation.
  void step(std::int64_t step, const StepState& result, double seconds,
            std::optional<double> validation_loss);
  // At the end: summary.json, and where everything is. `checkpoint` is the last one, empty if it could not be
  // saved.
  void finish(const std::filesystem::path& checkpoint, std::optional<double> bayes_optimal_loss);
  // These say why the run ended early and return the program's exit code.
  int stopped(int signal, bool saved);
  int diverged() const;

  // What a checkpoint must remember of the run so far.
  const RunState& state() const { return state_; }
  RunState state(const SpikeFilter& spikes) const {
    RunState state = state_;
    state.spike_window = spikes.values();
    return state;
  }

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
  RunState state_;
};

}  // namespace goat
