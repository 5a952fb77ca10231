// PassPlan: what a part of the model needs to know in order to plan the tensors of its passes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/memory/memory.h"

namespace goat {

struct BatchShape {
  std::int64_t sequences = 0;  // B
  std::int64_t length = 0;     // T
  // T_max if a KV cache carries keys and values from pass to pass (then B = 1); 0 if every
  // pass is independent.
  std::int64_t context = 0;
  std::int64_t tokens() const { return sequences * length; }
  // Number of positions in position tables.
  std::int64_t positions() const { return context ? context : length; }
};

struct PassPlan {
  using Extents = std::initializer_list<std::int64_t>;

  const Config& config;
  const DeviceInfo& device;
  BatchShape shape;
  bool training;  // whether a backward pass follows
  DType dtype;    // of activations and their gradients: f32 or bf16
  MemoryPlan& memory;

  // An activation, or a gradient of one, in the pass's dtype. Training keeps it from the forward to the
  // backward pass.
  void activation(const std::string& name, Extents extents, Tensor& view) const {
    memory.add(MemoryCategory::activations, name, dtype, extents, view);
  }
  // The same in another dtype: statistics of a row, token ids.
  void activation(const std::string& name, DType own, Extents extents, Tensor& view) const {
    memory.add(MemoryCategory::activations, name, own, extents, view);
  }
  // Memory whose contents are needed by nobody after the pass, or that is filled once.
  void workspace(const std::string& name, Extents extents, Tensor& view) const {
    memory.add(MemoryCategory::workspace, name, dtype, extents, view);
  }
  void workspace(const std::string& name, DType own, Extents extents, Tensor& view) const {
    memory.add(MemoryCategory::workspace, name, own, extents, view);
  }
};

}  // namespace goat
