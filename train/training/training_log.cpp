#include "train/training/training_log.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "train/config/counted.h"
#include "train/memory/memory.h"
#include "train/replicas/leaves.h"
#include "train/run/build_commit.h"
#include "train/training/sources.h"

namespace goat {

namespace {
const char* reason_of(const StepState& result) {
  return result.skip_update == StepState::spike ? "spike" : "not finite";
}
}  // namespace

std::string waiting_note(const InputRing::Waiting& waiting, double seconds) {
  constexpr double least_seconds = 1, least_share = 0.01;
  if (waiting.seconds < least_seconds || waiting.seconds < least_share * seconds) return "";
  char share[32];
  std::snprintf(share, sizeof share, "%.0f %%", 100 * waiting.seconds / seconds);
  return "training waited " + duration_text(waiting.seconds) + " for its data, " + share +
         " of the time, in " + counted(waiting.steps, "step") +
         ": they are read more slowly than the device computes; copy the shards to a faster disk";
}

TrainingLog::TrainingLog(const Config& config, const Device& device, RunFolder& run, const Trainer& trainer,
                         const std::optional<Peak>& peak)
    : config_(config),
      device_(device),
      run_(run),
      trainer_(trainer),
      parameters_(count_parameters(config)),
      scale_{flops_per_token(config), peak},
      progress_(trainer.steps(), config.log.interval, scale_),
      seconds_before_(trainer.state().seconds) {}

void TrainingLog::announce_ranks(const Ranks& ranks) const {
  if (ranks.size() == 1) return;
  const bool library = config_.library_adds();
  std::printf("ranks       %d on %s; the gradients of %s %s%s\n", ranks.size(),
              counted(ranks.group->peers().back().node + 1, "host").c_str(),
              counted(config_.leaves(), "leaf", "leaves").c_str(),
              library ? "are added by NCCL" : "are added in a fixed tree",
              ranks.nodes() > 1 && !library ? ", on each host first" : "");
  if (!ranks.note.empty()) std::fprintf(stderr, "note: %s\n", ranks.note.c_str());
  for (const std::string& note : notes_on_sums(config_, ranks.size()))
    std::fprintf(stderr, "note: %s\n", note.c_str());
}

void TrainingLog::announce(const std::string& why, const TokenSource& data,
                           const std::string& micro_batch_origin, const Ranks& ranks) const {
  std::printf("device      %s: %s (%s); computes in %s\n", device_.info().name.c_str(),
              device_.info().description.c_str(), why.c_str(), trainer_.state().precision.c_str());
  announce_ranks(ranks);
  std::printf("data        %s\n", data.description().c_str());
  for (const std::string& share : data.shares(static_cast<std::uint64_t>(sequences_in_all())))
    std::printf("            %s\n", share.c_str());
  if (config_.data.source == "shards") std::printf("tokenizer   %s\n", tokenizer_text(config_, data).c_str());
  for (const std::string& note : data.notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::printf(
      "model       %s, %s, width %lld, attention %s; %lld parameters, %lld of them the prior's (%lld with "
      "full q and k projections)\n",
      counted(config_.model.layers, "layer").c_str(), counted(config_.model.heads, "head").c_str(),
      static_cast<long long>(config_.model.width), config_.model.attention.c_str(),
      static_cast<long long>(parameters_.trainable), static_cast<long long>(parameters_.prior),
      static_cast<long long>(parameters_.full_projections));
  if (scale_.peak)
    std::printf("MFU         relative to %s, %s\n", flops_text(scale_.peak->flops_per_second).c_str(),
                scale_.peak->source.c_str());
  std::printf("memory      %s%s; micro-batch %lld of %s%s\n",
              bytes_text(trainer_.memory().total_bytes()).c_str(), ranks.size() > 1 ? " a rank" : "",
              static_cast<long long>(config_.micro_batch()), counted(config_.train.batch, "sequence").c_str(),
              micro_batch_origin.empty() ? "" : (", " + micro_batch_origin).c_str());
  const std::int64_t tokens_a_step = config_.tokens_per_step();
  std::printf("run         %s: %s of %s\n", run_.path().c_str(), counted(trainer_.steps(), "step").c_str(),
              counted(tokens_a_step, "token").c_str());
  const std::string& precision = trainer_.state().precision;
  const std::string before = run_.resumed() ? run_.resumed()->manifest.state.precision : "";
  if (!before.empty() && before != precision)
    std::fprintf(stderr, "note: resuming in %s; the steps before were computed in %s\n", precision.c_str(),
                 before.c_str());
  if (run_.resumed())
    std::printf("resuming    after step %lld, from %s\n", static_cast<long long>(trainer_.state().step),
                run_.resumed()->folder.c_str());
  std::fflush(stdout);
}

void TrainingLog::announce(const InitialWeights& weights) const {
  std::printf("weights     of step %lld of %s\n", static_cast<long long>(weights.from.manifest.state.step),
              weights.from.folder.c_str());
  for (const std::string& line : weights.lines()) std::printf("            %s\n", line.c_str());
  std::fflush(stdout);
}

std::int64_t TrainingLog::sequences_in_all() const {
  const RunState& state = trainer_.state();
  return state.sequences + (trainer_.steps() - state.step) * config_.train.batch;
}

void TrainingLog::saved(const std::filesystem::path& checkpoint) {
  progress_.clear();
  std::printf("checkpoint  %s\n", checkpoint.c_str());
  std::fflush(stdout);
}

void TrainingLog::not_saved(const std::string& reason, bool training_goes_on,
                            const std::filesystem::path& newest) {
  progress_.clear();
  std::fprintf(stderr, "WARNING: checkpoint of step %lld NOT saved: %s.%s%s\n",
               static_cast<long long>(trainer_.state().step), reason.c_str(),
               training_goes_on ? " Training goes on." : "",
               newest.empty() ? "" : (" The newest checkpoint is " + newest.string() + ".").c_str());
}

void TrainingLog::warn(const std::string& what) {
  progress_.clear();
  std::fprintf(stderr, "warning: %s\n", what.c_str());
}

void TrainingLog::step(const StepResult& result, std::optional<double> validation_loss) {
  const RunState& state = trainer_.state();
  const StepState& scalars = result.scalars;
  if (scalars.skip_update) {
    progress_.clear();
    warn_of_skip(result);
  }
  if (result.divergence) {
    progress_.clear();
    std::fprintf(stderr, "warning: step %lld: %s\n", static_cast<long long>(state.step),
                 result.divergence->c_str());
  }
  progress_.report(
      {state.step, scalars.loss, scalars.learning_rate, scalars.grad_norm, result.tokens, result.seconds});

  const double tokens_per_second = static_cast<double>(result.tokens) / result.seconds;
  nlohmann::json line = {{"step", state.step},
                         {"tokens", state.tokens},
                         {"loss", scalars.loss},
                         {"lr", scalars.learning_rate},
                         {"grad_norm", scalars.grad_norm},
                         {"tokens_per_second", tokens_per_second},
                         {"flops_per_second", scale_.flops_per_second(tokens_per_second)},
                         {"memory_bytes", trainer_.memory().total_bytes()},
                         {"seconds", state.seconds}};
  if (const auto mfu = scale_.mfu(tokens_per_second)) line["mfu"] = *mfu;
  if (scalars.skip_update) line["skipped"] = reason_of(scalars);
  if (validation_loss) {
    line["val_loss"] = *validation_loss;
    progress_.clear();
    std::printf("validation after step %lld: loss %.4f\n", static_cast<long long>(state.step),
                *validation_loss);
    std::fflush(stdout);
  }
  run_.log_metrics(line);
}

void TrainingLog::finish(const std::filesystem::path& checkpoint, std::optional<double> bayes_optimal_loss) {
  const RunState& state = trainer_.state();
  const double tokens_per_second =
      progress_.throughput().tokens_per_second().value_or(static_cast<double>(state.tokens) / state.seconds);
  nlohmann::json summary = {{"program", build_commit},
                            {"ranks", trainer_.ranks().size()},
                            {"device", device_.info().name},
                            {"device_description", device_.info().description},
                            {"steps", state.step},
                            {"tokens", state.tokens},
                            {"loss", state.loss},
                            {"seconds", state.seconds},
                            {"tokens_per_second", tokens_per_second},
                            {"flops_per_second", scale_.flops_per_second(tokens_per_second)},
                            {"flops_per_token", scale_.flops_per_token},
                            {"parameters", parameters_.trainable},
                            {"parameters_prior", parameters_.prior},
                            {"parameters_full_projections", parameters_.full_projections},
                            {"memory_bytes", trainer_.memory().total_bytes()},
                            {"seconds_waiting_for_data", trainer_.waiting_for_data().seconds},
                            {"skipped_updates", state.skipped_updates}};
  if (const auto mfu = scale_.mfu(tokens_per_second)) {
    summary["mfu"] = *mfu;
    summary["peak_flops_per_second"] = scale_.peak->flops_per_second;
  }
  if (!checkpoint.empty())
    summary["checkpoint"] = std::filesystem::relative(checkpoint, run_.path()).string();
  if (!std::isnan(state.validation_loss)) summary["val_loss"] = state.validation_loss;
  if (bayes_optimal_loss) {
    summary["bayes_optimal_loss"] = *bayes_optimal_loss;
    std::printf("the best any model can reach on this task: loss %.4f\n", *bayes_optimal_loss);
  }
  run_.write_summary(summary);
  note_waiting();
  std::printf("trained in %s; loss of the last step %.4f; model %s\n", duration_text(state.seconds).c_str(),
              state.loss, checkpoint.empty() ? "not saved" : checkpoint.c_str());
}

void TrainingLog::stopped(const StepWish& wish, bool saved) {
  progress_.clear();
  note_waiting();
  const std::string at = wish.rank == 0 ? "" : " at rank " + std::to_string(wish.rank);
  std::fprintf(stderr, "stopped after step %lld of %lld by signal %d (%s)%s%s\n",
               static_cast<long long>(trainer_.state().step), static_cast<long long>(trainer_.steps()),
               wish.signal, ::strsignal(wish.signal), at.c_str(),
               saved ? "; continue with --resume" : "; NOT saved");
}

void TrainingLog::note_waiting() const {
  const std::string note =
      waiting_note(trainer_.waiting_for_data(), trainer_.state().seconds - seconds_before_);
  if (!note.empty()) std::fprintf(stderr, "note: %s\n", note.c_str());
}

void TrainingLog::diverged() const {
  std::fprintf(stderr,
               "error: the last %lld updates were skipped (not finite, or spikes); stopped. The model saved "
               "is the one before them. Lower train.lr, raise train.spike_z, or look at the data.\n",
               static_cast<long long>(trainer_.state().consecutive_skips));
}

void TrainingLog::warn_of_skip(const StepResult& result) const {
  const StepState& scalars = result.scalars;
  std::fprintf(
      stderr,
      "warning: step %lld: loss %g, grad norm %g: %s, update skipped (training sequences %lld to %lld)\n",
      static_cast<long long>(trainer_.state().step), static_cast<double>(scalars.loss),
      static_cast<double>(scalars.grad_norm), reason_of(scalars),
      static_cast<long long>(result.first_sequence),
      static_cast<long long>(result.first_sequence + result.sequences - 1));
}

}  // namespace goat
