// WeightsCheck: finds ranks whose weights have become different, by a fault of memory or of a library.
#pragma once

#include <stdexcept>

#include "train/memory/memory.h"
#include "train/memory/parameters.h"
#include "train/ranks/rank_group.h"

namespace goat {

// Nothing that these weights would give may be saved.
struct WeightsDiffer : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class WeightsCheck {
 public:
  void plan(MemoryPlan& memory, const ParameterSet& parameters);
  // Hashes the weights that the passes read, and compares them over the ranks; all ranks call it. Throws
  // WeightsDiffer on all ranks, with the same message: which ranks differ from the others, and the first
  // parameter in which they do. `when` says after what: "step 100". Does nothing for one rank.
  void compare(Device& device, const ParameterSet& parameters, RankGroup& group,
               const std::string& when) const;
  void enqueue(Device& device, const ParameterSet& parameters) const;  // the part on the device

 private:
  Tensor hashes_;  // 8 bytes a parameter
};

}  // namespace goat
