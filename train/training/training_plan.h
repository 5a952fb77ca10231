// TrainingPlan: everything that a training run keeps in device memory, and the passes over it.
#pragma once

#include <optional>
#include <span>

#include "train/config/config.h"
#include "train/memory/memory.h"
#include "train/memory/parameters.h"
#include "train/model/model.h"
#include "train/replicas/replicas.h"
#include "train/replicas/weights_check.h"

namespace goat {

// Planned but not allocated. It must not move, because the memory plan points to its tensors.
struct TrainingPlan {
  // `device` says how much temporary memory its operations take. The plan is that of rank `rank` of
  // `ranks`, which divides config.leaves().
  TrainingPlan(const Config& config, const Device& device, int rank = 0, int ranks = 1);
  TrainingPlan(const TrainingPlan&) = delete;

  StepState* scalars() const { return static_cast<StepState*>(state.data); }
  // Loads a micro-batch from memory of Device::allocate_host, which the device reads later. `weights` are
  // those of its targets' losses in the step's loss.
  void enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                    std::span<const std::int32_t> targets, std::span<const float> weights) const;
  // Computes the loss and gradients of the loaded micro-batch and adds them to the leaf's.
  void add_micro_batch(Device& device);
  // Adds the gradients of all leaves, and sets the scalars that decide on the update.
  void judge(Device& device, Communicator& communicator) const;
  // AdamW, unless the scalars say no.
  void update(Device& device, Communicator& communicator) const;

  Rounding rounding() const;  // train.rounding

  const Config config;
  ParameterSet parameters;
  Replicas replicas;
  WeightsCheck weights_check;
  MemoryPlan memory;
  std::optional<Model> model;
  Tensor state;          // one StepState
  Tensor token_weights;  // f32 [N], of the micro-batch's losses in the step's loss
  Tensor workspace;      // temporary memory of operations

 private:
  void run_passes(Device& survey, int rank, int ranks);  // every operation of a step and of a save
};

}  // namespace goat
