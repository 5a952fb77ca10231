// QkvProjection: the heads of queries, keys and values, linear in the input of attention.
#pragma once

#include <string>
#include <vector>

#include "train/model/block_memory.h"
#include "train/model/kv_cache.h"
#include "train/model/layers.h"

namespace goat {

// q [B, T_q, H, d_h], k and v [B, T_k, H_k, d_h], strided.
struct HeadVectors {
  Tensor q, k, v;
};

// The tensors that a projection saves for backward. Without model.qk_norm one GEMM writes q, k and v side by
// side. RMSNorm reads and writes contiguous rows: with it three GEMMs write three tensors, which the norms
// read without a copy.
struct QkvActivations {
  Tensor packed;        // [B, T, H + 2 H_k, d_h]: the heads of q, of k, of v; absent with a KV cache
  Tensor raw_q, raw_k;  // [B, T, H, d_h], [B, T, H_k, d_h] before their norms, only with qk_norm
  Tensor q, k, v;       // after them; only with qk_norm, k and v not with a KV cache
  void plan(const std::string& prefix, const PassPlan& plan);
};

// RMSNorm of each head's vector over the declared parameter "NAME.padded" [d_h]. The mean of squares is over
// d_h coordinates, of which those after the content are zero. So, with s = sqrt(d_h / d_c), the result is s
// times the norm over the d_c content coordinates. Attention's scale makes up for it (logit_scale).
class HeadNorm {
 public:
  HeadNorm(const Config& config, const ParameterSet& parameters, const std::string& name, std::int64_t heads);
  void plan(const PassPlan& plan);
  void forward(Device& device, const Tensor& out, const Tensor& x) const;  // [B, T, heads, d_h]
  // Sets dx and adds to the parameter's gradient.
  void backward(Device& device, const Tensor& dx, const Tensor& dout, const Tensor& x) const;

 private:
  std::string name_;
  std::int64_t heads_;
  float eps_;
  const Parameter* weight_;
  Tensor rstd_;  // f32 [B T heads]
};

// What attention multiplies <q, k> by: the scale of the content logits, 1/sqrt(d_c) or 1, and what HeadNorm
// asks for, d_c / d_h with qk_norm.
float logit_scale(const Config& config);

class QkvProjection {
 public:
  // cache: the layer's part of a KvCache, or nullptr.
  QkvProjection(const Config& config, const ParameterSet& parameters, const std::string& prefix,
                const LayerCache* cache);
  void plan(const PassPlan& plan);

  // Computes q, k and v of x [N, C], whose first token is at `first_position`, and returns these rows.
  HeadVectors forward(Device& device, const QkvActivations& saved, std::int64_t first_position,
                      std::int64_t length, const Tensor& x) const;
  // The rows of the positions first .. first + length - 1. q with qk_norm: those of the latest pass.
  HeadVectors rows(const QkvActivations& saved, std::int64_t first, std::int64_t length) const;

  // Where the gradients of q, k and v belong, without a KV cache.
  HeadVectors gradients(const BlockMemory& shared) const;
  // Sets dx = dL/dx from those gradients and adds to the parameters' gradients.
  void backward(Device& device, const BlockMemory& shared, const QkvActivations& saved, const Tensor& dx,
                const Tensor& x) const;

 private:
  HeadVectors side_by_side(const Tensor& all) const;  // of [.., H + 2 H_k, d_h]
  void backward_parts(Device& device, const QkvGradients& parts, const QkvActivations& saved,
                      const Tensor& dx, const Tensor& x) const;

  std::int64_t heads_, kv_heads_;
  const LayerCache* cache_;
  std::vector<LinearLayer> linear_;  // of q, k and v, one after the other; one of all without qk_norm
  std::vector<HeadNorm> norms_;      // of q and k, only with qk_norm
};

}  // namespace goat
