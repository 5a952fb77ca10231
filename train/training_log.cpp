#include "train/training_log.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "train/memory.h"

namespace goat {

namespace {
const char* reason_of(const StepState& result) {
  return result.skip_update == StepState::spike ? "spike" : "not finite";
}
}  // namespace

TrainingLog::TrainingLog(const Config& config, const Device& device, RunFolder& run)
    : config_(config),
      device_(device),
      run_(run),
      parameters_(count_parameters(config)),
      flops_per_token_(goat::flops_per_token(config)),
      tokens_per_step_(config.train.batch * config.data.seq_len),
      progress_(config.steps(), config.log.interval, static_cast<double>(tokens_per_step_),
                flops_per_token_) {
  if (run.resumed()) state_ = run.resumed()->manifest.state;
}

void TrainingLog::announce(const std::string& why, const TokenSource& data, std::size_t memory_bytes) {
  memory_bytes_ = memory_bytes;
  std::printf("device      %s: %s (%s); computes in fp32\n", device_.info().name.c_str(),
              device_.info().description.c_str(), why.c_str());
  std::printf("data        %s\n", data.description().c_str());
  std::printf(
      "model       %lld layers, %lld heads, width %lld, attention %s; %lld parameters, %lld of them the "
      "prior's (%lld with full q and k "
      "projections)\n",
      static_cast<long long>(config_.model.layers), static_cast<long long>(config_.model.heads),
      static_cast<long long>(config_.model.width), config_.model.attention.c_str(),
      static_cast<long long>(parameters_.trainable), static_cast<long long>(parameters_.prior),
      static_cast<long long>(parameters_.full_projections));
  std::printf("memory      %s\n", bytes_text(memory_bytes).c_str());
  std::printf("run         %s: %lld steps of %lld tokens\n", run_.path().c_str(),
              static_cast<long long>(config_.steps()), static_cast<long long>(tokens_per_step_));
  if (run_.resumed())
    std::printf("resuming    after step %lld, from %s\n", static_cast<long long>(state_.step),
                run_.resumed()->folder.c_str());
  std::fflush(stdout);
}

void TrainingLog::saved(const std::filesystem::path& checkpoint) {
  progress_.clear();
  std::printf("checkpoint  %s\n", checkpoint.c_str());
  std::fflush(stdout);
}

void TrainingLog::not_saved(const std::string& reason) {
  progress_.clear();
  std::fprintf(
      stderr,
      "WARNING: checkpoint of step %lld NOT saved: %s. Training goes on; earlier checkpoints are intact.\n",
      static_cast<long long>(state_.step), reason.c_str());
}

void TrainingLog::step(std::int64_t step, const StepState& result, double seconds,
                       std::optional<double> validation_loss) {
  state_.step = step;
  state_.seconds += seconds;
  state_.updates = result.updates;
  state_.consecutive_skips = result.consecutive_skips;
  state_.skipped_updates += result.skip_update != 0;
  state_.loss = result.loss;
  if (validation_loss) state_.validation_loss = *validation_loss;
  if (result.skip_update) {
    progress_.clear();
    warn_of_skip(step, result);
  }
  progress_.report({step, result.loss, result.learning_rate, result.grad_norm, seconds});

  nlohmann::json line = {
      {"step", step},
      {"tokens", tokens_per_step_ * step},
      {"loss", result.loss},
      {"lr", result.learning_rate},
      {"grad_norm", result.grad_norm},
      {"tokens_per_second", static_cast<double>(tokens_per_step_) / seconds},
      {"flops_per_second", static_cast<double>(tokens_per_step_) * flops_per_token_ / seconds},
      {"memory_bytes", memory_bytes_},
      {"seconds", state_.seconds}};
  if (result.skip_update) line["skipped"] = reason_of(result);
  if (validation_loss) {
    line["val_loss"] = *validation_loss;
    progress_.clear();
    std::printf("validation after step %lld: loss %.4f\n", static_cast<long long>(step), *validation_loss);
    std::fflush(stdout);
  }
  run_.log_metrics(line);
}

void TrainingLog::finish(const std::filesystem::path& checkpoint, std::optional<double> bayes_optimal_loss) {
  nlohmann::json summary = {
      {"device", device_.info().name},
      {"device_description", device_.info().description},
      {"steps", state_.step},
      {"tokens", tokens_per_step_ * state_.step},
      {"loss", state_.loss},
      {"seconds", state_.seconds},
      {"tokens_per_second", static_cast<double>(tokens_per_step_ * state_.step) / state_.seconds},
      {"flops_per_token", flops_per_token_},
      {"parameters", parameters_.trainable},
      {"parameters_prior", parameters_.prior},
      {"parameters_full_projections", parameters_.full_projections},
      {"memory_bytes", memory_bytes_},
      {"skipped_updates", state_.skipped_updates}};
  if (!checkpoint.empty())
    summary["checkpoint"] = std::filesystem::relative(checkpoint, run_.path()).string();
  if (!std::isnan(state_.validation_loss)) summary["val_loss"] = state_.validation_loss;
  if (bayes_optimal_loss) {
    summary["bayes_optimal_loss"] = *bayes_optimal_loss;
    std::printf("the best any model can reach on this task: loss %.4f\n", *bayes_optimal_loss);
  }
  run_.write_summary(summary);
  std::printf("trained in %s; model %s\n", duration_text(state_.seconds).c_str(),
              checkpoint.empty() ? "not saved" : checkpoint.c_str());
}

int TrainingLog::stopped(int signal, bool saved) {
  progress_.clear();
  std::fprintf(stderr, "stopped after step %lld of %lld by signal %d (%s)%s\n",
               static_cast<long long>(state_.step), static_cast<long long>(config_.steps()), signal,
               ::strsignal(signal), saved ? "; continue with --resume" : "; NOT saved");
  return saved ? 4 : 1;
}

int TrainingLog::diverged() const {
  std::fprintf(stderr,
               "error: the last %lld updates were skipped (not finite, or spikes); stopped. The model saved "
               "is the one before them. "
               "Lower train.lr, raise train.spike_z, or look at the data.\n",
               static_cast<long long>(state_.consecutive_skips));
  return 1;
}

void TrainingLog::warn_of_skip(std::int64_t step, const StepState& result) const {
  const long long first = (step - 1) * config_.train.batch;
  std::fprintf(
      stderr,
      "warning: step %lld: loss %g, grad norm %g: %s, update skipped (training sequences %lld to %lld)\n",
      static_cast<long long>(step), static_cast<double>(result.loss), static_cast<double>(result.grad_norm),
      reason_of(result), first, first + static_cast<long long>(config_.train.batch) - 1);
}

}  // namespace goat
