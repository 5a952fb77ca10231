#include "train/training/training_loop.h"

#include <exception>
#include <new>
#include <utility>

#include "kernels/device_lost.h"
#include "train/training/stop_signal.h"

namespace goat {

namespace {
bool due(std::int64_t interval, std::int64_t steps_done) {
  return interval > 0 && steps_done % interval == 0;
}
}  // namespace

TrainingLoop::TrainingLoop(const Config& config, Device& device, Trainer& trainer, RunFolder& run,
                           TrainingLog& log, DataRecord data)
    : config_(config),
      device_(device),
      trainer_(trainer),
      run_(run),
      log_(log),
      data_(std::move(data)),
      first_step_(trainer.state().step) {
  if (!run.resumed()) return;
  checkpoint_ = newest_ = run.resumed()->folder;
  damaged_ = run.resumed()->damaged;
}

int TrainingLoop::run(std::optional<double> bayes_optimal_loss) {
  try {
    while (!trainer_.finished() && !diverged_ && !stop_signal()) step();
    return finish(bayes_optimal_loss);
  } catch (const DeviceLost& error) {
    throw std::runtime_error(error.what() + what_is_left());
  } catch (const DataError& error) {
    throw DataError(error.what() + save_after_failure());
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("out of memory on the host" + save_after_failure());
  } catch (const std::exception& error) {
    throw std::runtime_error(error.what() + save_after_failure());
  }
}

void TrainingLoop::step() {
  const auto start = std::chrono::steady_clock::now();
  if (const auto before = trainer_.step()) report(*before, {});
  checkpoint_.clear();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const bool save_now = checkpoint_due(taken.count());
  if (save_now || trainer_.finished() || validation_due() || stop_signal() || !runs_ahead()) settle();
  if (save_now) save(true);
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
  diverged_ = result.scalars.consecutive_skips >= config_.train.max_skips;
  run_.establish(config_);
  log_.step(result, validation_loss);
}

// A checkpoint is due every checkpoint.interval steps, or if one more step like this one
// would exceed checkpoint.minutes.
bool TrainingLoop::checkpoint_due(double step_seconds) const {
  if (due(config_.checkpoint.interval, trainer_.enqueued())) return true;
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - saved_at_;
  return config_.checkpoint.minutes > 0 && since.count() + step_seconds > 60 * config_.checkpoint.minutes;
}

void TrainingLoop::save(bool training_goes_on) {
  saved_at_ = std::chrono::steady_clock::now();
  try {
    run_.establish(config_);
    run_.require_in_place();
    checkpoint_ =
        save_checkpoint(run_.path(), config_, trainer_.state(), data_, device_, trainer_.parameters());
  } catch (const DeviceLost& error) {
    log_.not_saved("the GPU was lost", false, newest_);
    if (training_goes_on) throw;
    log_.warn(error.what());
    return;
  } catch (const std::exception& error) {
    log_.not_saved(error.what(), training_goes_on, newest_);
    return;
  }
  newest_ = checkpoint_;
  std::erase(damaged_, checkpoint_);
  log_.saved(checkpoint_);
  clean_up();
}

void TrainingLoop::clean_up() {
  try {
    remove_old_checkpoints(run_.path(), config_.checkpoint.keep, config_.checkpoint.milestone, newest_,
                           damaged_);
    run_.checkpoint_stands();
  } catch (const std::exception& error) {
    log_.warn(std::string("older checkpoints could not be removed: ") + error.what());
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
    return std::string("\nThen ") + error.what() + what_is_left();
  } catch (const std::exception& error) {
    told = std::string("\nThen the step that still ran failed too: ") + error.what();
  }
  const std::int64_t done = trainer_.state().step;
  const std::string step = "step " + std::to_string(done);
  if (!trainer_.consistent()) {
    told += "\nThe update after " + step + " broke off, and its weights cannot be used.";
  } else if (checkpoint_.empty() && done > first_step_) {
    save(false);
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
  if (stop_signal() && !trainer_.finished()) return log_.stopped(stop_signal(), !checkpoint_.empty());
  log_.finish(checkpoint_, bayes_optimal_loss);
  if (diverged_) return log_.diverged();
  return checkpoint_.empty() ? 1 : 0;
}

}  // namespace goat
