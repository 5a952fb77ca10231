// GradientTree: the sum of a rank's leaves. The batch of a step is cut into leaves of equal size, and the
// gradients of leaves are added in a fixed tree, so that their sum does not depend on which ranks computed
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "train/memory/memory.h"
#include "train/memory/parameters.h"

namespace goat {

// Leaves are added in the binary-counter tree of SumParts: (0+1) + (2+3), then + (4+5), and so on. What waits
// for the rest of its subtree is kept in a branch; a branch of level l is the sum of 2^l leaves.
class GradientTree {
 public:
  explicit GradientTree(std::int64_t leaves) : leaves_(leaves) {}

  // Plans a set of gradients for each level but the last; none for one leaf.
  void plan(MemoryPlan& memory, const ParameterSet& parameters);
  std::int64_t leaves() const { return leaves_; }

  // The gradients of `parameters` are those of leaf number `leaf`. Leaves are added in order: all but the
  // last one by add(), and that one by finish(), range by range. A range of a group's gradients is then the
  // sum of all leaves.
  void add(Device& device, const ParameterSet& parameters, std::int64_t leaf) const;
  void finish(Device& device, const ParameterSet& parameters, std::size_t group, std::int64_t first,
              std::int64_t elements) const;

 private:
  using Branch = std::vector<Tensor>;  // by group
  std::int64_t leaves_;
  std::vector<Branch> branches_;  // by level
};

}  // namespace goat
