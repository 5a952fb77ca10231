// Layers that every sub-layer is built from: linear maps and norms over declared parameters.
#pragma once

#include <string>

#include "kernels/device.h"
#include "train/memory/parameters.h"
#include "train/memory/pass_plan.h"
#include "train/model/block_memory.h"
#include "train/model/block_spec.h"

namespace goat {

// What the factors of the model's matrix products are rounded to. In bf16 the cpu keeps f32 tensors and
// rounds them for each product; on a GPU they are bf16 already, so that nothing is left to round.
Factors factors_of(const Config& config);

// out = x W^T + b over the declared parameters "NAME.weight" [.., I], of O rows in all, and "NAME.bias", of O
// elements, which may be absent. x and out have N rows of I and of O elements, in any number of dimensions;
// so have their gradients dx and dout.
class LinearLayer {
 public:
  LinearLayer(const Config& config, const ParameterSet& parameters, const std::string& name);
  // Of the O rows only those from `first` on, `count` of them.
  LinearLayer(const Config& config, const ParameterSet& parameters, const std::string& name,
              std::int64_t first, std::int64_t count);
  void forward(Device& device, const Tensor& out, const Tensor& x) const;
  void backward_input(Device& device, const Tensor& dx, const Tensor& dout) const;  // sets dx
  // out = gelu(projected), projected = x W^T + b; model.epilogue says how.
  void forward_gelu(Device& device, const Tensor& out, const Tensor& projected, const Tensor& x) const;
  // Sets the gradient of projected, where this layer's x is gelu(projected).
  void backward_input_gelu(Device& device, const Tensor& dprojected, const Tensor& dout,
                           const Tensor& projected) const;
  void backward_weight(Device& device, const Tensor& dout, const Tensor& x) const;  // adds to the gradients

 private:
  // Its rows of the weight, of the bias, or of their gradients.
  Tensor rows(const Tensor& packed) const;
  Tensor bias_rows(Tensor Parameter::*view) const;  // absent without a bias

  const Parameter* weight_;
  const Parameter* bias_;
  std::int64_t first_, count_;
  Factors factors_;
  Epilogue epilogue_;  // model.epilogue
};

// LayerNorm or RMSNorm of (x + residual) over the declared parameters "NAME.weight" and, in LayerNorm with a
// bias, "NAME.bias". Keeps the statistics of each row for backward.
class NormLayer {
 public:
  NormLayer(const Config& config, const ParameterSet& parameters, const std::string& name);
  void plan(const PassPlan& plan);
  // out = norm(x + residual), all [N, C]; sum receives x + residual. Without a residual out = norm(x), and
  // sum is not written.
  void forward(Device& device, const BlockMemory& shared, const Tensor& out, const Tensor& sum,
               const Tensor& x, const Tensor& residual) const;
  // Adds the gradient of sum to dsum, and to the parameters' gradients.
  void backward(Device& device, const BlockMemory& shared, const Tensor& dsum, const Tensor& dout,
                const Tensor& sum) const;

 private:
  NormKind kind_;
  std::string name_;
  float eps_;
  const Parameter* weight_;
  const Parameter* bias_;  // LayerNorm with a bias only
  Tensor mean_, rstd_;     // f32 [N]; the mean in LayerNorm only
};

}  // namespace goat
