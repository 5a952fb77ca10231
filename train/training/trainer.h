// Trainer: training steps (micro-batches, clipping, AdamW) and validation for a model, its parameters and a
// data source. It owns the state of the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/config/config.h"
#include "train/memory/memory.h"
#include "train/memory/parameters.h"
#include "train/model/model.h"
#include "train/run/checkpoint.h"
#include "train/training/divergence_watch.h"
#include "train/training/spike_filter.h"

namespace goat {

// Everything that a training run keeps in device memory, planned but not allocated. It must not move, because
// the plan points to its tensors.
struct TrainingPlan {
  // `device` says how much temporary memory its operations take.
  TrainingPlan(const Config& config, const Device& device);
  TrainingPlan(const TrainingPlan&) = delete;

  StepState* scalars() const { return static_cast<StepState*>(state.data); }
  // Computes the loss and gradients of the loaded micro-batch and adds them to the step's.
  void add_micro_batch(Device& device, float token_weight);
  void measure_gradients(Device& device) const;  // sets the scalars that decide on the update
  void update(Device& device) const;             // AdamW, unless the scalars say no

  const Config config;
  ParameterSet parameters;
  MemoryPlan memory;
  std::optional<Model> model;
  Tensor state;      // one StepState
  Tensor workspace;  // temporary memory of operations
};

// The result of one step.
struct StepResult {
  StepState scalars;
  std::int64_t first_sequence = 0;  // index of the step's first sequence in the training source
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  std::optional<std::string> divergence;  // see DivergenceWatch
};

class Trainer {
 public:
  // Plans the memory, but does not allocate it. `validation` may be null. `state` is the state in the
  // checkpoint from which the run continues.
  Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation,
          const RunState& state = {});

  // Throws std::runtime_error if the plan does not fit. The message names the largest micro-batch that fits.
  void require_memory() const;
  void allocate();    // then call initialize() or restore()
  void initialize();  // draws the initial weights
  // Reads weights and moments. Throws DataError.
  void restore(const std::filesystem::path& checkpoint);

  // Runs the next step of the run, on the next train.batch sequences of the training source. The loss and its
  // gradient are means over the step's counted targets. Throws DataError, and what the device throws.
  StepResult step();

  // Mean loss in nats per token over the first eval.tokens tokens of the validation source, in whole
  // sequences: at least one, fewer if the source ends earlier. nullopt if there is no validation source.
  std::optional<double> validate();

  // The state after the steps so far, as a checkpoint stores it.
  const RunState& state() const { return state_; }
  // Number of steps of the whole run. If the run's length is set in tokens, the steps already done count the
  // tokens that they really read.
  std::int64_t steps() const { return steps_; }
  bool finished() const { return state_.step >= steps_; }
  // Whether weights, moments and state() belong together. They do not after a step that failed
  // during its update.
  bool consistent() const { return consistent_; }

  const ParameterSet& parameters() const { return plan_.parameters; }
  const MemoryPlan& memory() const { return plan_.memory; }

 private:
  void read_step(std::int64_t first);
  void advance(const StepResult& result);

  const Config& config() const { return plan_.config; }

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

// Number of steps of the whole run, seen from `state`: train.steps, or the steps done plus those that the
// rest of train.tokens needs.
std::int64_t steps_of_run(const Config& config, const RunState& state);

}  // namespace goat
