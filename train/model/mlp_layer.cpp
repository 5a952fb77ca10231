#include "train/model/mlp_layer.h"

namespace goat {

namespace {
bool is_gated(const Config& config) { return block_spec(config).mlp == MlpKind::swiglu; }
}  // namespace

void MlpActivations::plan(const std::string& prefix, const PassPlan& plan) {
  const std::int64_t tokens = plan.shape.tokens(), width = plan.config.ff_width();
  if (is_gated(plan.config))
    plan.activation(prefix + "gate_up", {tokens, 2, width}, projected);
  else
    plan.activation(prefix + "up", {tokens, width}, projected);
  if (plan.config.model.recompute != "gelu") plan.activation(prefix + "hidden", {tokens, width}, hidden);
}

MlpLayer::MlpLayer(const Config& config, const ParameterSet& parameters, const std::string& prefix)
    : gated_(is_gated(config)),
      up_(config, parameters, prefix + (gated_ ? "gate_up" : "up")),
      down_(config, parameters, prefix + "down") {}

void MlpLayer::compute_hidden(Device& device, const Tensor& hidden, const MlpActivations& saved) const {
  const Tensor& projected = saved.projected;
  if (gated_)
    device.run(SwigluForward{.out = hidden, .gate = projected.select(1, 0), .up = projected.select(1, 1)});
  else
    device.run(GeluForward{.out = hidden, .x = projected});
}

void MlpLayer::forward_hidden(Device& device, const BlockMemory& shared, const MlpActivations& saved,
                              const Tensor& x) const {
  const Tensor& out = hidden(shared, saved);
  if (!gated_) return up_.forward_gelu(device, out, saved.projected, x);
  up_.forward(device, saved.projected, x);
  compute_hidden(device, out, saved);
}

void MlpLayer::forward_out(Device& device, const BlockMemory& shared, const MlpActivations& saved,
                           const Tensor& out) const {
  down_.forward(device, out, hidden(shared, saved));
}

Tensor MlpLayer::backward_down(Device& device, const BlockMemory& shared, const MlpActivations& saved,
                               const Tensor& dout) const {
  const Tensor& projected = saved.projected;
  if (!gated_) {
    down_.backward_input_gelu(device, shared.dhidden, dout, projected);
    return shared.dhidden;
  }
  down_.backward_input(device, shared.dhidden, dout);
  const Tensor gate = projected.select(1, 0), up = projected.select(1, 1);
  device.run(SwigluBackward{.dgate = gate, .dup = up, .dout = shared.dhidden, .gate = gate, .up = up});
  return projected;
}

void MlpLayer::backward(Device& device, const BlockMemory& shared, const MlpActivations& saved,
                        const Tensor& dx, const Tensor& dout, const Tensor& x) const {
  if (!saved.hidden) compute_hidden(device, shared.hidden, saved);
  down_.backward_weight(device, dout, hidden(shared, saved));
  const Tensor dprojected = backward_down(device, shared, saved, dout);
  up_.backward_weight(device, dprojected, x);
  up_.backward_input(device, dx, dprojected);
}

}  // namespace goat
