// TrainingLog: the output of a training run: announcement, progress lines, metrics.jsonl,
// warnings and summary.json.
#pragma once

#include <optional>
#include <string>

#include "data/token_source.h"
#include "kernels/device.h"
#include "train/config/config.h"
#include "train/model/model_parameters.h"
#include "train/run/run_folder.h"
#include "train/speed/progress.h"
#include "train/training/trainer.h"

namespace goat {

// What the user should know of a run that has waited for its data: for at least a second, and for 1 % of the
// `seconds` of training. Otherwise empty.
std::string waiting_note(const InputRing::Waiting& waiting, double seconds);

class TrainingLog {
 public:
  // `peak` is what MFU refers to, if there is one.
  TrainingLog(const Config& config, const Device& device, RunFolder& run, const Trainer& trainer,
              const std::optional<Peak>& peak = {});

  // Prints the settings before the first step. `why` is the reason for choosing the device.
  // micro_batch_origin: see MicroBatchChoice.
  void announce(const std::string& why, const TokenSource& data, const std::string& micro_batch_origin,
                const Ranks& ranks) const;
  void announce(const InitialWeights& weights) const;
  void saved(const std::filesystem::path& checkpoint);
  // Warns that a checkpoint could not be saved. `newest` is the newest checkpoint before it, or empty.
  void not_saved(const std::string& reason, bool training_goes_on, const std::filesystem::path& newest);
  void warn(const std::string& what);
  // Reports a step of the trainer.
  void step(const StepResult& result, std::optional<double> validation_loss);
  // Writes summary.json and prints where the model is. `checkpoint` is the last one, or empty if it could
  // not be saved.
  void finish(const std::filesystem::path& checkpoint, std::optional<double> bayes_optimal_loss);
  // These report why the run ended early. `wish` is the stop signal and the rank to which it came.
  void stopped(const StepWish& wish, bool saved);
  void diverged() const;

 private:
  void announce_ranks(const Ranks& ranks) const;
  void warn_of_skip(const StepResult& result) const;
  void note_waiting() const;
  std::int64_t sequences_in_all() const;  // of the whole run

  const Config config_;
  const Device& device_;
  RunFolder& run_;
  const Trainer& trainer_;
  ParameterCounts parameters_;
  SpeedScale scale_;
  Progress progress_;
  double seconds_before_;  // of training, before this start
};

}  // namespace goat
