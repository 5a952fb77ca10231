// Replicas: keeps the model the same on all ranks. Each rank computes the gradients of its leaves; pieces of
// the sum over all ranks, norms and losses are added in orders that do not depend on the number of ranks;
// each rank updates its pieces of the weights, which all gather.
//
// The network only moves bytes: a bucket's parts of all ranks come by an all-to-all and are added by
// SumParts.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/communicator.h"
#include "train/memory/memory.h"
#include "train/memory/parameters.h"
#include "train/replicas/gradient_tree.h"

namespace goat {

class Replicas {
 public:
  // What a rank tells all others in a step beside its numbers: the largest value of each counts. 0: nothing.
  static constexpr int flags = StepState::most_flags;

  // `leaves`: of the step, over all ranks; sharding.size divides it. `parameters` must outlive this.
  Replicas(const ParameterSet& parameters, const Sharding& sharding, std::int64_t leaves);
  void plan(MemoryPlan& memory);

  std::int64_t own_leaves() const { return tree_.leaves(); }

  // A leaf of this rank: begin_leaf(), passes that add to the gradients and to *leaf_loss(), end_leaf().
  void begin_leaf(Device& device) const;
  double* leaf_loss() const { return loss_.as<double>(); }
  void end_leaf(Device& device, std::int64_t leaf) const;

  // This rank's flags of the step, f64 [flags] in device memory, to be set before judge().
  double* own_flags() const { return own_row().as<double>(); }
  // Adds the gradients of all ranks, and sets the state of the step from the losses, squares and flags of
  // all.
  void judge(Device& device, Communicator& communicator, StepState* state, float clip) const;
  // Gathers the weights that the ranks have updated.
  void gather_weights(Device& device, Communicator& communicator) const;

 private:
  void add_gradients(Device& device, Communicator& communicator) const;
  std::vector<ChunkSums> sum_squares(Device& device) const;
  std::int64_t columns() const;  // of the table of reports
  Tensor own_row() const { return reports_.select(0, sharding_.rank); }

  const ParameterSet& parameters_;
  const Sharding sharding_;
  GradientTree tree_;
  Tensor loss_;     // f64 [1], of the leaf that is computed
  Tensor reports_;  // f64 [size, columns]: a rank's flags, losses of its leaves, squares of its chunks
  Tensor parts_;    // f32 [size * the largest piece], of a bucket, from all ranks; absent for one rank
};

}  // namespace goat
