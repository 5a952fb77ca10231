// Trainer: one training step (micro-batches, clip, AdamW) and validation, over a model, its parameters and a data source.
#pragma once

#include <cstdint>
#include <optional>

#include "data/token_source.h"
#include "train/config.h"
#include "train/model.h"

namespace goat {

class Trainer {
 public:
  // Allocates everything and draws the initial weights. `validation` may be null.
  Trainer(const Config& config, Device& device, TokenSource& training, TokenSource* validation);

  // Runs step 0 <= step < steps: sequences step*batch .. step*batch + batch - 1 of the training source. Returns the step's scalars.
  StepState step(std::int64_t step);

  // Mean loss, nats a token, over the first eval.batches micro-batches of the validation source (fewer if it holds fewer; the last one may be ragged).
  // nullopt where there is none.
  std::optional<double> validate();

  ParameterSet& parameters() { return parameters_; }
  const MemoryPlan& memory() const { return memory_; }

 private:
  void load(TokenSource& source, std::uint64_t first);

  const Config config_;
  Device& device_;
  TokenSource& training_;
  TokenSource* validation_;
  ParameterSet parameters_;
  MemoryPlan memory_;
  Model model_;
  Tensor state_;  // one StepState in device memory
  std::vector<std::int32_t> inputs_, targets_;
};

}  // namespace goat
