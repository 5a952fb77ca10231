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
  // `ranks`, which divides config.leaves(), on so many nodes.
  TrainingPlan(const Config& config, const Device& device, int rank = 0, int ranks = 1, int nodes = 1);
  TrainingPlan(const TrainingPlan&) = delete;

  StepState* scalars() const { return static_cast<StepState*>(state.data); }
  // Loads a micro-batch from memory of Device::allocate_host, which the device reads later. `weights` are
  // those of its targets' losses in the step's loss.
  void enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                    std::span<const std::int32_t> targets, std::span<const float> weights) const;
  // The replicas must be connected, to this device, for what follows.
  // Computes the loss and gradients of the loaded micro-batch and adds them to the leaf's. `last`: of the
  // step, on this rank.
  void add_micro_batch(Device& device, bool last);
  void judge() const;           // sets the scalars that decide on the update
  void update(Device& device);  // AdamW, unless the scalars say no

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
  TrainingPlan(const Config& config, const Device& device, const Sharding& sharding);
  void run_passes(Device& survey, const Sharding& sharding);  // every operation of a step and of a save
  void update(Device& device, const ParameterSet::Group& group, const Piece& piece) const;
};

}  // namespace goat
