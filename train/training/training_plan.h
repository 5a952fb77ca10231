// TrainingPlan: everything that a training run keeps in device memory, and the passes over it.
#pragma once

#include <optional>
#include <span>

#include "train/config/config.h"
#include "train/memory/memory.h"
#include "train/memory/parameters.h"
#include "train/model/model.h"

namespace goat {

// Planned but not allocated. It must not move, because the memory plan points to its tensors.
struct TrainingPlan {
  // `device` says how much temporary memory its operations take.
  TrainingPlan(const Config& config, const Device& device);
  TrainingPlan(const TrainingPlan&) = delete;

  StepState* scalars() const { return static_cast<StepState*>(state.data); }
  void begin_step(Device& device) const;  // clears the step's loss and gradients
  // Loads a micro-batch from memory of Device::allocate_host, which the device reads later. `weights` are
  // those of its targets' losses in the step's loss.
  void enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                    std::span<const std::int32_t> targets, std::span<const float> weights) const;
  // Computes the loss and gradients of the loaded micro-batch and adds them to the step's.
  void add_micro_batch(Device& device);
  void measure_gradients(Device& device) const;  // sets the scalars that decide on the update
  void update(Device& device) const;             // AdamW, unless the scalars say no

  Rounding rounding() const;  // train.rounding

  const Config config;
  ParameterSet parameters;
  MemoryPlan memory;
  std::optional<Model> model;
  Tensor state;          // one StepState
  Tensor token_weights;  // f32 [N], of the micro-batch's losses in the step's loss
  Tensor workspace;      // temporary memory of operations
};

}  // namespace goat
