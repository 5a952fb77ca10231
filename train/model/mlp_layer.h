// MlpLayer: down(gelu(up x)), or down(silu(gate x) * up x).
#pragma once

#include <string>

#include "train/model/block_memory.h"
#include "train/model/layers.h"

namespace goat {

// The tensors that an MLP saves for backward. F is model.ff_width.
struct MlpActivations {
  Tensor projected;  // [N, F] up; [N, 2, F] gate and up in a gated MLP
  Tensor hidden;     // [N, F], the input of down; not planned if recompute = gelu
  void plan(const std::string& prefix, const PassPlan& plan);
};

class MlpLayer {
 public:
  MlpLayer(const Config& config, const ParameterSet& parameters, const std::string& prefix);

  // x, out and their gradients are [N, C]. Computes all but the last product.
  void forward_hidden(Device& device, const BlockMemory& shared, const MlpActivations& saved,
                      const Tensor& x) const;
  // out = down(hidden), after forward_hidden.
  void forward_out(Device& device, const BlockMemory& shared, const MlpActivations& saved,
                   const Tensor& out) const;
  // Sets dx = dL/dx from dout = dL/dout and adds to the parameters' gradients. A gated MLP overwrites
  // saved.projected.
  void backward(Device& device, const BlockMemory& shared, const MlpActivations& saved, const Tensor& dx,
                const Tensor& dout, const Tensor& x) const;

 private:
  const Tensor& hidden(const BlockMemory& shared, const MlpActivations& saved) const {
    return saved.hidden ? saved.hidden : shared.hidden;
  }
  // From saved.projected. In a GELU MLP this is what forward_hidden computed only if model.epilogue = own.
  void compute_hidden(Device& device, const Tensor& hidden, const MlpActivations& saved) const;
  // Gradient of saved.projected, from that of out. Overwrites shared.dhidden.
  Tensor backward_down(Device& device, const BlockMemory& shared, const MlpActivations& saved,
                       const Tensor& dout) const;

  bool gated_;
  LinearLayer up_;  // gate and up, one after the other, in a gated MLP
  LinearLayer down_;
};

}  // namespace goat
