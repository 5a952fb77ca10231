// TrainingLoop: steps, validations and checkpoints until a run ends. If it ends early, the steps done so far
// are saved first.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/run/run_folder.h"
#include "train/training/trainer.h"
#include "train/training/training_log.h"

namespace goat {

class TrainingLoop {
 public:
  // `data` is stored in the checkpoints.
  TrainingLoop(const Config& config, Device& device, Trainer& trainer, RunFolder& run, TrainingLog& log,
               DataRecord data);

  // Trains until the run is done, diverges, or a stop signal arrives. Returns the exit code. An error in a
  // step, in a validation or on the disk is thrown again as DataError or std::runtime_error; the message also
  // names the newest checkpoint. After DeviceLost nothing is asked of the device any more.
  int run(std::optional<double> bayes_optimal_loss);

 private:
  void step();
  bool validation_due() const;
  bool runs_ahead() const;
  void settle();
  void report(const StepResult& result, std::optional<double> validation_loss);
  int finish(std::optional<double> bayes_optimal_loss);
  bool checkpoint_due(double step_seconds) const;
  void save(bool training_goes_on);
  void clean_up();
  std::string save_after_failure();
  std::string what_is_left() const;
  std::string named_newest(const std::string& told) const;

  const Config config_;
  Device& device_;
  Trainer& trainer_;
  RunFolder& run_;
  TrainingLog& log_;
  const DataRecord data_;
  const std::int64_t first_step_;               // number of steps done before this start
  std::filesystem::path checkpoint_;            // checkpoint of the latest step; empty if that step has none
  std::filesystem::path newest_;                // newest checkpoint of the run; empty if there is none
  std::vector<std::filesystem::path> damaged_;  // checkpoints that the resume skipped
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  bool diverged_ = false;
};

}  // namespace goat
