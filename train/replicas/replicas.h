// Replicas: keeps the model the same on all ranks. Each rank computes the gradients of its leaves; pieces of
// the sum over all ranks, norms and losses are added in orders that do not depend on the number of ranks;
// each rank updates its pieces of the weights, which all gather.
//
// A bucket of gradients leaves for the other ranks as soon as the last pass has completed it, and a bucket of
// weights as soon as it is updated; the next pass waits for a bucket where it first reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "train/memory/memory.h"
#include "train/memory/parameters.h"
#include "train/memory/pass_hooks.h"
#include "train/replicas/exchange.h"
#include "train/replicas/gradient_tree.h"

namespace goat {

class Replicas {
 public:
  // What a rank tells all others in a step beside its numbers: the largest value of each counts. 0: nothing.
  static constexpr int flags = StepState::most_flags;

  // `leaves`: of the step, over all ranks; sharding.size divides it. `parameters` must outlive this.
  Replicas(const ParameterSet& parameters, const Sharding& sharding, std::int64_t leaves,
           const ExchangeOptions& options);
  void plan(MemoryPlan& memory);  // after that of the parameters
  // Both must outlive the connection. Everything below needs one.
  void connect(Device& device, Communicators& ranks);
  void disconnect() { exchange_.disconnect(); }

  std::int64_t own_leaves() const { return tree_.leaves(); }

  // A leaf of this rank: begin_leaf(), passes that add to the gradients and to *leaf_loss(), end_leaf().
  void begin_leaf() const;
  double* leaf_loss() const { return loss_.as<double>(); }
  void end_leaf(std::int64_t leaf) const;

  // The hooks of a pass. Those of the last one of the last leaf send the gradients, if exchanges_in_pass();
  // else end_leaf() does.
  class Hooks final : public PassHooks {
   public:
    Hooks(Replicas& replicas, bool last) : replicas_(replicas), last_(last) {}
    void before_forward(std::size_t unit) override { replicas_.await_weights_of(unit); }
    void after_backward(std::size_t unit) override {
      if (last_) replicas_.send_gradients_of(unit);
    }

   private:
    Replicas& replicas_;
    const bool last_;
  };
  bool exchanges_in_pass() const { return sharding_.size > 1 && overlap_; }

  // This rank's flags of the step, f64 [flags] in device memory, to be set before judge().
  double* own_flags() const { return own_row().as<double>(); }
  // Sets the state of the step from the gradients, losses and flags of all ranks.
  void judge(StepState* state, float clip) const;

  // The buckets in the order in which a forward pass reads them.
  struct Place {
    std::size_t group, bucket, first_unit;
  };
  const std::vector<Place>& places() const { return places_; }
  // Sends this rank's piece of the weights of a bucket, a place's number, to all others.
  void gather_weights_of(std::size_t place);
  void gather_weights();  // of all buckets
  // What the device is given from now on may read all weights.
  void await_weights();

 private:
  struct Arrival {  // of a bucket of weights
    std::unique_ptr<DeviceEvent> event;
    bool awaited = true;
  };
  void await_weights_of(std::size_t unit);
  void await(std::size_t place);
  void send_gradients_of(std::size_t unit) const;
  void send_gradients(const Place& place) const;
  std::vector<ChunkSums> sum_squares() const;
  std::int64_t columns() const;  // of the table of reports
  Tensor own_row() const { return reports_.select(0, sharding_.rank); }

  const ParameterSet& parameters_;
  const Sharding sharding_;
  const bool overlap_;
  GradientTree tree_;
  Exchange exchange_;
  std::vector<Place> places_;
  std::vector<Arrival> arrivals_;  // by place
  Device* device_ = nullptr;
  Tensor loss_;     // f64 [1], of the leaf that is computed
  Tensor reports_;  // f64 [size, columns]: a rank's flags, losses of its leaves, squares of its chunks
};

}  // namespace goat
