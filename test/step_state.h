// The scalars of a training step in device memory, as tests of loss, gradient norm and AdamW keep them, and
// the verdict over gradients.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "test/operand.h"

namespace goat::test {

// A StepState in device memory.
class State {
 public:
  State(Device& device, const StepState& state) : device_(&device), buffer_(device, sizeof(StepState)) {
    set(state);
  }
  void set(const StepState& state) { device_->upload(buffer_.data(), &state, sizeof state); }
  StepState get() const {
    StepState state;
    device_->download(&state, buffer_.data(), sizeof state);
    return state;
  }
  StepState* pointer() const { return static_cast<StepState*>(buffer_.data()); }

 private:
  Device* device_;
  DeviceBuffer buffer_;
};

inline StepState fresh_state() {
  return {.learning_rate = 1e-2f,
          .loss_limit = 0,
          .grad_norm_limit = 0,
          .loss = 1,
          .grad_norm = 0,
          .clip_scale = 1,
          .skip_update = 0,
          .consecutive_skips = 0,
          .updates = 0};
}

inline std::int64_t chunks_of(const Tensor& grad) {
  return (grad.elements() + SquaredSums::chunk - 1) / SquaredSums::chunk;
}

// StepVerdict over `loss` and f32 gradients on one rank. The gradients' chunks follow one another.
inline void judge(Device& device, StepState* state, double loss, std::span<const Tensor> grads, float clip) {
  const auto losses = Operand::of(device, {loss}, {1, 1}, "losses", DType::f64);
  std::deque<Operand> sums;
  std::vector<ChunkSums> squares;
  std::int64_t first = 0;
  for (const Tensor& grad : grads) {
    const std::int64_t chunks = chunks_of(grad);
    sums.emplace_back(device, DType::f64, std::initializer_list<std::int64_t>{1, chunks}, "sums");
    device.run(SquaredSums{sums.back().tensor().select(0, 0), grad});
    squares.push_back({sums.back(), first});
    first += chunks;
  }
  device.run(StepVerdict{state, losses, squares, clip});
  device.synchronize();
}

// The state after the verdict over state.loss and one gradient. What the verdict only writes is poisoned.
inline StepState after_verdict(Device& device, StepState state, const std::vector<double>& grad, float clip) {
  const double loss = state.loss;
  state.loss = state.grad_norm = state.clip_scale = -7;
  state.skip_update = -7;
  const State on_device(device, state);
  const auto operand = Operand::of(device, grad, {static_cast<std::int64_t>(grad.size())}, "grad");
  const Tensor grads[] = {operand};
  judge(device, on_device.pointer(), loss, grads, clip);
  return on_device.get();
}

}  // namespace goat::test
