// BlockMemory: the memory that every block of a model reuses.
#pragma once

#include "train/memory/pass_plan.h"
#include "train/positions/positional_part.h"

namespace goat {

// Gradients of a QKV projection with model.qk_norm (train/model/qkv_projection.h).
struct QkvGradients {
  Tensor dq;          // [B, T, H, d_h]
  Tensor dk, dv;      // [B, T, H_k, d_h]
  Tensor draw_q;      // [B, T, H, d_h], of q before its norm
  Tensor draw_k;      // [B, T, H_k, d_h]
  Tensor dinputs;     // [3, N, C], what q, k and v add to the gradient of their input
  Tensor dinput_sum;  // f32 [N, C], their sum; only in bf16
  void plan(const PassPlan& plan);
};

// Shapes are [N, C] unless stated. Gradients exist only in training.
struct BlockMemory {
  Tensor branch;       // output of the latest sub-layer, not yet added to the residual stream
  Tensor hidden;       // [N, F], hidden units of the MLP, only if recompute = gelu
  Tensor dresidual;    // gradient of the residual stream
  Tensor dnorm;        // gradient of a normalised input
  Tensor dattention;   // [B, T, H, d_h], gradient of the attention output
  Tensor dhidden;      // [N, F]
  Tensor dqkv;         // [B, T, H + 2 H_k, d_h], without qk_norm
  QkvGradients parts;  // with qk_norm
  Tensor delta;        // f32 [B, H, T]
  Tensor dkey_bias;    // f32 [B, H, T], only if a positional part reads it
  // f32 [C], the bias of a LayerNorm that has none, and where its gradients add up, read by nobody.
  Tensor no_bias, no_dbias;

  std::int64_t first_position = 0;  // position of the pass's first token; above 0 only with a KV cache
  bool first_pass = true;           // of the model, since its memory was bound

  void plan(const PassPlan& plan, const PositionalParts& positions);
  void bind(Device& device);  // after allocation

 private:
  void plan_gradients(const PassPlan& plan);
};

}  // namespace goat
