// TrainingLoop: steps, validations and checkpoints until a run is done. Whatever ends it once a step is done,
// what was reached is saved first.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "train/run/run_folder.h"
#include "train/training/trainer.h"
#include "train/training/training_log.h"

namespace goat {

class TrainingLoop {
 public:
  // `data` goes into the checkpoints.
  TrainingLoop(const Config& config, Device& device, Trainer& trainer, RunFolder& run, TrainingLog& log,
               DataRecord data);

  // Trains until the run is done, diverges, or a stop signal comes. Returns the exit code. Rethrows what a
  // step, a validation or the disk throws, as DataError or std::runtime_error, with the newest checkpoint in
  // its message.
  int run(std::optional<double> bayes_optimal_loss);

 private:
  void step();
  int finish(std::optional<double> bayes_optimal_loss);
  bool checkpoint_due(double step_seconds) const;
  void save(bool training_goes_on);
  void clean_up();
  std::string save_after_failure();

  const Config config_;
  Device& device_;
  Trainer& trainer_;
  RunFolder& run_;
  TrainingLog& log_;
  const DataRecord data_;
  const std::int64_t first_step_;     // steps done before this start
  std::filesystem::path checkpoint_;  // of the latest step; empty where that step has none
  std::filesystem::path newest_;      // the latest checkpoint of the run; empty where it has none
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  bool diverged_ = false;
};

}  // namespace goat
