// AttentionLayer: QKV projection, positional parts, attention, output projection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/model/block_memory.h"
#include "train/model/layers.h"
#include "train/positions/positional_part.h"

namespace goat {

// The tensors that an attention layer saves for backward.
struct AttentionActivations {
  Tensor qkv;  // [B, T, 3, H, d_h] as attention reads them; absent with a KV cache, which holds q, k and v
  Tensor out;  // [B, T, H, d_h], before the output projection
  Tensor lse;  // f32 [B, H, T]
  void plan(const std::string& prefix, const PassPlan& plan);
};

float content_scale(const Config& config);  // of the content logits: 1/sqrt(d_c), or 1 without scaling

class AttentionLayer {
 public:
  // cached_qkv: the layer's tensor of a KvCache, or nullptr.
  AttentionLayer(const Config& config, const ParameterSet& parameters, const PositionalParts& parts,
                 const std::string& prefix, const Tensor* cached_qkv);
  void plan(const PassPlan& plan);

  // out = o(attention(qkv(x))); x and out are [N, C].
  void forward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
               const Tensor& out, const Tensor& x);
  // Sets dx = dL/dx from dout = dL/dout and adds to the parameters' gradients. Not with a KV cache.
  void backward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
                const Tensor& dx, const Tensor& dout, const Tensor& x);

 private:
  // Of the part that has one; absent if none has. Throws std::logic_error if two have.
  Tensor slope() const;

  std::string prefix_;
  std::int64_t content_dim_;
  float scale_;
  const Tensor* cached_qkv_;
  bool deterministic_;
  LinearLayer qkv_, o_;
  std::vector<std::unique_ptr<PositionalLayer>> positions_;
};

}  // namespace goat
