// AttentionLayer: QKV projection, positional parts, attention, output projection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/model/block_memory.h"
#include "train/model/layers.h"
#include "train/model/qkv_projection.h"
#include "train/positions/positional_part.h"

namespace goat {

// The tensors that an attention layer saves for backward.
struct AttentionActivations {
  QkvActivations qkv;
  Tensor out;  // [B, T, H, d_h], before the output projection
  Tensor lse;  // f32 [B, H, T]
  void plan(const std::string& prefix, const PassPlan& plan);
};

// What the attention kernel reads in a pass, but for v and the slope.
struct AttentionReads {
  Tensor q, k;      // strided [B, T, H, d_h], [B, T, H_k, d_h]
  Tensor key_bias;  // f64 [B, H, T]; absent if no positional part gives one
};

class AttentionLayer {
 public:
  // cache: the layer's part of a KvCache, or nullptr.
  AttentionLayer(const Config& config, const ParameterSet& parameters, const PositionalParts& parts,
                 const std::string& prefix, const LayerCache* cache);
  void plan(const PassPlan& plan);

  // out = o(attention(qkv(x))); x and out are [N, C].
  void forward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
               const Tensor& out, const Tensor& x);
  // Sets dx = dL/dx from dout = dL/dout and adds to the parameters' gradients. Not with a KV cache.
  void backward(Device& device, const BlockMemory& shared, const AttentionActivations& saved,
                const Tensor& dx, const Tensor& dout, const Tensor& x);
  AttentionReads reads(const AttentionActivations& saved) const;  // in the latest pass; not with a KV cache

 private:
  // Of the part that has one; absent if none has. Throw std::logic_error if two have.
  Tensor slope() const;
  Tensor key_bias() const;
  Tensor only(Tensor (PositionalLayer::*operand)() const, const char* what) const;
  AttentionBackward gradients_of(const BlockMemory& shared, const AttentionActivations& saved) const;

  std::string prefix_;
  std::int64_t content_dim_;
  float scale_;
  const LayerCache* cache_;
  bool deterministic_;
  QkvProjection qkv_;
  LinearLayer o_;
  std::vector<std::unique_ptr<PositionalLayer>> positions_;
};

}  // namespace goat
