// TrainingLoop: steps, validations and checkpoints until a run ends. If it ends early, the steps done so far
// are saved first. Among several ranks all do the same after the same steps.
#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/replicas/ranks.h"
#include "train/run/run_folder.h"
#include "train/training/trainer.h"
#include "train/training/training_log.h"

namespace goat {

class TrainingLoop {
 public:
  // `data` is stored in the checkpoints. `run` and `log` are there on rank 0 alone; the others are told
  // `path`, the run's folder, and `resumed`, the checkpoint from which the run continues, if there is one.
  TrainingLoop(const Config& config, Device& device, Trainer& trainer, RunFolder& run, TrainingLog& log,
               DataRecord data);
  TrainingLoop(const Config& config, Device& device, Trainer& trainer, RunFolder* run, TrainingLog* log,
               std::filesystem::path path, const std::optional<FoundCheckpoint>& resumed, DataRecord data);

  // Trains until the run is done, diverges, or a stop signal arrives at any rank. Returns the exit code. An
  // error in a step, in a validation or on the disk is thrown again as DataError or std::runtime_error; the
  // message also names the newest checkpoint. After DeviceLost and WeightsDiffer nothing is saved. An error
  // that the other ranks did not have, too, ends all of them (RankGroup::fail).
  int run(std::optional<double> bayes_optimal_loss);

  // The newest checkpoint of the run, or empty.
  const std::filesystem::path& newest() const { return newest_; }

 private:
  void train();
  void step();
  StepWish own_wish() const;
  bool stops() const;
  bool validation_due() const;
  bool save_due() const;
  bool runs_ahead() const;
  void settle();
  void report(const StepResult& result, std::optional<double> validation_loss);
  int finish(std::optional<double> bayes_optimal_loss);
  void check_weights();
  void save(bool training_goes_on);
  void not_saved(const std::string& reason, bool training_goes_on);
  void clean_up();
  void fail_if_alone(const std::exception& error, const std::string& what, int code);
  std::string save_after_failure();
  std::string what_is_left() const;
  std::string named_newest(const std::string& told) const;

  const Config config_;
  Device& device_;
  Trainer& trainer_;
  Ranks& ranks_;
  RunFolder* const run_;    // of rank 0
  TrainingLog* const log_;  // of rank 0
  const std::filesystem::path path_;
  const DataRecord data_;
  const std::int64_t first_step_;               // number of steps done before this start
  std::filesystem::path checkpoint_;            // checkpoint of the latest step; empty if that step has none
  std::filesystem::path newest_;                // newest checkpoint of the run; empty if there is none
  std::vector<std::filesystem::path> damaged_;  // checkpoints that the resume skipped
  std::chrono::steady_clock::time_point saved_at_ = std::chrono::steady_clock::now();
  double step_seconds_ = 0;  // of the latest step
  StepWish agreed_;          // of all ranks; only among several
  bool diverged_ = false;
};

}  // namespace goat
