// AttentionLayer: QKV projection, positional part, attention, output projection.
#pragma once

#include <memory>

#include "train/model/block.h"
#include "train/model/prior_layer.h"

namespace goat {

// The tensors that an attention layer saves for backward.
struct AttentionActivations {
  Tensor qkv;  // [B, T, 3, H, d_h] with lanes; absent with a KV cache, which holds q, k and v
  Tensor out;  // [B, T, H, d_h], before the output projection
  Tensor lse;  // f32 [B, H, T]
  void plan(const std::string& prefix, const Config& config, BatchShape shape, MemoryPlan& memory);
};

// The attention variants differ in two places: in the work between the QKV projection and the attention
// kernel (goat writes the lanes), and in the slope.
class AttentionLayer {
 public:
  // cached_qkv: the layer's tensor of a KvCache, or nullptr.
  AttentionLayer(const Config& config, const ParameterSet& parameters, const std::string& prefix,
                 const Tensor* cached_qkv);
  void plan(const std::string& prefix, BatchShape shape, MemoryPlan& memory);

  void forward(Device& device, SharedBuffers& shared, const AttentionActivations& saved, const Tensor& out,
               const Tensor& x);
  // Sets dx = dL/dx from dout = dL/dout and adds to the parameters' gradients.
  void backward(Device& device, SharedBuffers& shared, const AttentionActivations& saved, const Tensor& dx,
                const Tensor& dout, const Tensor& x);

 private:
  Tensor slope() const { return prior_ ? prior_->slope() : Tensor{}; }

  std::int64_t content_dim_;
  float scale_;
  bool learned_frequencies_;
  const Tensor* cached_qkv_;
  bool deterministic_;
  LinearLayer qkv_, o_;
  std::unique_ptr<PriorLayer> prior_;  // goat only
};

}  // namespace goat
