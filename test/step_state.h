// The scalars of a training step in device memory, as tests of loss, gradient norm and AdamW keep them.
#pragma once

#include <cstdint>
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

// The state after GradientNorm over one gradient.
inline StepState after_norm(Device& device, const StepState& before, const std::vector<double>& grad,
                            float clip) {
  const State state(device, before);
  const auto operand = Operand::of(device, grad, {static_cast<std::int64_t>(grad.size())}, "grad");
  const Tensor grads[] = {operand};
  device.run(GradientNorm{state.pointer(), grads, clip});
  return state.get();
}

}  // namespace goat::test
