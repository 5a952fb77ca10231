// Trainer: training steps (micro-batches, clip, AdamW) and validation, over a model, its parameters and a
// data source; owns the state of the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data/token_source.h"
#include "train/config/config.h"
#include "train/model/model.h"
#include "train/run/checkpoint.h"
#include "train/training/divergence_watch.h"
#include "train/training/spike_filter.h"

namespace goat {

// Whether this build has the blocks of the config. Where not, a TrainingPlan throws ConfigError.
bool can_train(const Config& config);

// Everything a training run keeps in device memory, planned but not allocated. Immovable: the plan knows
// where its tensors are.
struct TrainingPlan {
  explicit TrainingPlan(const Config& config);
  TrainingPlan(const TrainingPlan&) = delete;

  ParameterSet parameters;
  MemoryPlan memory;
  std::optional<Model> model;
  Tensor state;  // one StepState
};

// What one step did.
struct StepResult {
  StepState scalars;
  std::int64_t first_sequence = 0;  // of the training source, of those that the step read
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  std::optional<std::string> divergence;  // see DivergenceWatch
};

class Trainer {
 public:
  // Plans the memory; nothing is allocated yet. `validation` may be null; `state` is that of the checkpoint
  // that the run continues from.
  Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation,
          const RunState& state = {});

  void require_memory() const;  // throws if the plan does not fit, naming the largest micro-batch that does
  void allocate();              // everything that was planned; then one of these:
  void initialize();            // draws the initial weights
  void restore(const std::filesystem::path& checkpoint);  // reads weights and moments; throws DataError

  // The run's next step, on the next train.batch sequences of the training source. The loss and its gradient
  // are means over the step's counted targets. Throws DataError, and what the device throws.
  StepResult step();

  // Mean loss, nats a token, over the first eval.tokens tokens of the validation source, in whole sequences
  // (at least one, fewer where it ends). nullopt where there is none.
  std::optional<double> validate();

  // What the steps so far have reached, as a checkpoint remembers it.
  const RunState& state() const { return state_; }
  // Steps of the whole run. Where its length is given in tokens, those trained already count as they were.
  std::int64_t steps() const { return steps_; }
  bool finished() const { return state_.step >= steps_; }
  // Whether weights, moments and state() belong together. They do not if a step broke off in its update.
  bool consistent() const { return consistent_; }

  const ParameterSet& parameters() const { return plan_.parameters; }
  const MemoryPlan& memory() const { return plan_.memory; }

 private:
  void read_step(std::int64_t first);
  void update();
  void advance(const StepResult& result);

  const Config config_;
  Device& device_;
  TokenSource& training_;
  TokenSource* validation_;
  TrainingPlan plan_;
  Model& model_;
  SpikeFilter spikes_;
  DivergenceWatch watch_;
  RunState state_;
  const std::int64_t steps_;
  bool consistent_ = true;
  std::vector<std::int32_t> inputs_, targets_;  // [batch, T] of a step
};

// Steps of the whole run that `state` has come to: train.steps, or those that train.tokens still take.
std::int64_t steps_of_run(const Config& config, const RunState& state);

}  // namespace goat
