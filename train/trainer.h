// Trainer: one training step (micro-batches, clip, AdamW) and validation, over a model, its parameters and a
// data source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "data/token_source.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/model.h"
#include "train/spike_filter.h"

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

class Trainer {
 public:
  // Plans the memory; nothing is allocated yet. `validation` may be null.
  Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation);

  void require_memory() const;  // throws if the plan does not fit, naming the largest micro-batch that does
  void allocate();              // everything that was planned; then one of these:
  void initialize();            // draws the initial weights
  void restore(const std::filesystem::path& checkpoint,
               const RunState& state);  // continues from a checkpoint folder; throws DataError

  // Runs step 0 <= step < steps: sequences step*batch .. step*batch + batch - 1 of the training source.
  // Returns the step's scalars.
  StepState step(std::int64_t step);

  // Mean loss, nats a token, over the first eval.batches micro-batches of the validation source (fewer if it
  // holds fewer; the last one may be ragged). nullopt where there is none.
  std::optional<double> validate();

  const ParameterSet& parameters() const { return plan_.parameters; }
  const SpikeFilter& spikes() const { return spikes_; }
  const MemoryPlan& memory() const { return plan_.memory; }

 private:
  void load(TokenSource& source, std::uint64_t first);

  const Config config_;
  Device& device_;
  TokenSource& training_;
  TokenSource* validation_;
  TrainingPlan plan_;
  Model& model_;
  SpikeFilter spikes_;
  std::vector<std::int32_t> inputs_, targets_;
};

}  // namespace goat
