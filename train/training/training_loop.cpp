#include "train/training/training_loop.h"

#include <exception>
#include <new>
#include <utility>

#include "kernels/device_lost.h"
#include "train/replicas/on_all_ranks.h"
#include "train/replicas/weights_check.h"
#include "train/training/stop_signal.h"

namespace goat {

namespace {
constexpr Phase saving{"save", true};

bool due(std::int64_t interval, std::int64_t steps_done) {
  return interval > 0 && steps_done % interval == 0;
}
}  // namespace

TrainingLoop::TrainingLoop(const Config& config, Device& device, Trainer& trainer, RunFolder& run,
                           TrainingLog& log, DataRecord data)
    : TrainingLoop(config, device, trainer, &run, &log, run.path(), run.resumed(), std::move(data)) {}

TrainingLoop::TrainingLoop(const Config& config, Device& device, Trainer& trainer, RunFolder* run,
                           TrainingLog* log, std::filesystem::path path,
                           const std::optional<FoundCheckpoint>& resumed, DataRecord data)
    : config_(config),
      device_(device),
      trainer_(trainer),
      ranks_(trainer.ranks()),
      run_(run),
      log_(log),
      path_(std::move(path)),
      data_(std::move(data)),
      first_step_(trainer.state().step) {
  if (!resumed) return;
  checkpoint_ = newest_ = resumed->folder;
  damaged_ = resumed->damaged;
}

int TrainingLoop::run(std::optional<double> bayes_optimal_loss) {
  try {
    train();
    return finish(bayes_optimal_loss);
  } catch (const RankLost& error) {
    ranks_.group->lost(error.rank, error.what());
    throw;
  } catch (const RunFailed&) {
    throw;
  } catch (const DeviceLost& error) {
    fail_if_alone(error, error.what(), 1);
    throw OnAllRanks<std::runtime_error>(error.what() + what_is_left());
  } catch (const WeightsDiffer& error) {
    throw OnAllRanks<std::runtime_error>(error.what() + named_newest(""));
  } catch (const DataError& error) {
    fail_if_alone(error, error.what(), 3);
    throw OnAllRanks<DataError>(error.what() + save_after_failure());
  } catch (const std::bad_alloc& error) {
    fail_if_alone(error, "out of memory on the host", 1);
    throw OnAllRanks<std::runtime_error>("out of memory on the host" + save_after_failure());
  } catch (const std::exception& error) {
    fail_if_alone(error, error.what(), 1);
    throw OnAllRanks<std::runtime_error>(error.what() + save_after_failure());
  }
}

// If the other ranks have not met the error, they wait for this one, which cannot go on.
void TrainingLoop::fail_if_alone(const std::exception& error, const std::string& what, int code) {
  if (ranks_.size() > 1 && !thrown_on_all_ranks(error)) ranks_.group->fail(what, code);
}

void TrainingLoop::train() {
  check_weights();
  while (!trainer_.finished() && !diverged_ && !stops()) step();
}

// After a step that has a checkpoint the weights have just been compared.
void TrainingLoop::check_weights() {
  if (ranks_.size() > 1) trainer_.check_weights();
}

// What this rank wants by its own signals and, on rank 0, by the clock: a checkpoint is due if one more step
// like the latest would exceed checkpoint.minutes.
StepWish TrainingLoop::own_wish() const {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - saved_at_;
  return {.signal = stop_signal(),
          .rank = ranks_.rank(),
          .save = ranks_.first() && config_.checkpoint.minutes > 0 &&
                  since.count() + step_seconds_ > 60 * config_.checkpoint.minutes};
}

bool TrainingLoop::stops() const { return (ranks_.size() == 1 ? own_wish() : agreed_).signal != 0; }

bool TrainingLoop::save_due() const {
  return due(config_.checkpoint.interval, trainer_.enqueued()) ||
         (ranks_.size() == 1 ? own_wish() : agreed_).save;
}

void TrainingLoop::step() {
  const auto start = std::chrono::steady_clock::now();
  if (const auto before = trainer_.step([this] { return own_wish(); })) report(*before, {});
  checkpoint_.clear();
  step_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const bool save_now = save_due(), check_now = due(config_.distributed.check_interval, trainer_.enqueued());
  if (save_now || check_now || trainer_.finished() || validation_due() || stops() || !runs_ahead()) settle();
  if (check_now) check_weights();
  if (save_now || (ranks_.size() > 1 && agreed_.save)) save(true);
}

bool TrainingLoop::validation_due() const { return due(config_.eval.interval, trainer_.enqueued()); }

// Whether the next step may begin before the result of this one is known: not where the device is done with
// it anyway, and not if the run ends should this update be skipped too.
bool TrainingLoop::runs_ahead() const {
  return !device_.completes_at_once() && trainer_.state().consecutive_skips + 1 < config_.train.max_skips;
}

// Waits for the running step, validates the model if the step asks for it, and reports both.
void TrainingLoop::settle() {
  const auto result = trainer_.finish_step();
  if (!result) return;
  std::optional<double> validation_loss;
  std::exception_ptr failure;
  try {
    if (trainer_.finished() || validation_due()) validation_loss = trainer_.validate();
  } catch (...) {
    // The step is logged before the error is thrown again.
    failure = std::current_exception();
  }
  report(*result, validation_loss);
  if (failure) std::rethrow_exception(failure);
}

void TrainingLoop::report(const StepResult& result, std::optional<double> validation_loss) {
  agreed_ = result.wish;
  diverged_ = result.scalars.consecutive_skips >= config_.train.max_skips;
  if (!run_) return;
  run_->establish(config_);
  log_->step(result, validation_loss);
}

void TrainingLoop::save(bool training_goes_on) {
  ranks_.group->enter(saving);
  saved_at_ = std::chrono::steady_clock::now();
  agreed_.save = false;
  check_weights();
  try {
    on_rank_0(*ranks_.group, "whether the run folder is in place", [this] {
      run_->establish(config_);
      run_->require_in_place();
      return std::string();
    });
    checkpoint_ = save_checkpoint(path_, config_, trainer_.state(), data_, device_, trainer_.parameters(),
                                  *ranks_.group);
  } catch (const RunFailed&) {
    throw;
  } catch (const DeviceLost& error) {
    fail_if_alone(error, error.what(), 1);
    not_saved("the GPU was lost", false);
    if (training_goes_on) throw;
    if (log_) log_->warn(error.what());
    return;
  } catch (const std::exception& error) {
    fail_if_alone(error, error.what(), 1);
    return not_saved(error.what(), training_goes_on);
  }
  newest_ = checkpoint_;
  std::erase(damaged_, checkpoint_);
  if (!log_) return;
  log_->saved(checkpoint_);
  clean_up();
}

void TrainingLoop::not_saved(const std::string& reason, bool training_goes_on) {
  if (log_) log_->not_saved(reason, training_goes_on, newest_);
}

void TrainingLoop::clean_up() {
  try {
    remove_old_checkpoints(path_, config_.checkpoint.keep, config_.checkpoint.milestone, newest_, damaged_);
    run_->checkpoint_stands();
  } catch (const std::exception& error) {
    log_->warn(std::string("older checkpoints could not be removed: ") + error.what());
  }
}

// The weights were on the device alone, so that nothing is tried.
std::string TrainingLoop::what_is_left() const {
  const std::int64_t done = trainer_.state().step;
  std::string told;
  if (checkpoint_.empty() && done > first_step_)
    told = "\nWhat step " + std::to_string(done) + " had reached is lost with it.";
  return told + named_newest(told);
}

std::string TrainingLoop::save_after_failure() {
  std::string told;
  try {
    if (const auto result = trainer_.finish_step()) report(*result, {});
  } catch (const DeviceLost& error) {
    fail_if_alone(error, error.what(), 1);
    return std::string("\nThen ") + error.what() + what_is_left();
  } catch (const std::exception& error) {
    fail_if_alone(error, error.what(), 1);
    told = std::string("\nThen the step that still ran failed too: ") + error.what();
  }
  const std::int64_t done = trainer_.state().step;
  const std::string step = "step " + std::to_string(done);
  if (!trainer_.consistent()) {
    told += "\nThe update after " + step + " broke off, and its weights cannot be used.";
  } else if (checkpoint_.empty() && done > first_step_) {
    try {
      save(false);
    } catch (const WeightsDiffer& error) {
      told += std::string("\nThen ") + error.what() + ".";
    }
    told += checkpoint_.empty() ? "\nWhat " + step + " had reached could not be saved."
                                : "\nWhat " + step + " had reached is saved.";
  }
  return told + named_newest(told);
}

// Continues `told`.
std::string TrainingLoop::named_newest(const std::string& told) const {
  if (newest_.empty()) return told.empty() ? "" : " There is no checkpoint.";
  return (told.empty() ? "\n" : " ") + ("Newest checkpoint: " + newest_.string()) +
         "; --resume continues from it";
}

int TrainingLoop::finish(std::optional<double> bayes_optimal_loss) {
  settle();
  if (checkpoint_.empty()) save(false);
  const bool saved = !checkpoint_.empty();
  if (stops() && !trainer_.finished()) {
    if (log_) log_->stopped(ranks_.size() == 1 ? own_wish() : agreed_, saved);
    return saved ? 4 : 1;
  }
  if (log_) log_->finish(checkpoint_, bayes_optimal_loss);
  if (diverged_ && log_) log_->diverged();
  return saved && !diverged_ ? 0 : 1;
}

}  // namespace goat
