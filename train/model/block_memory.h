// BlockMemory: the memory that every block of a model reuses.
#pragma once

#include "train/memory/pass_plan.h"

namespace goat {

// Shapes are [N, C] unless stated. Gradients exist only in training.
struct BlockMemory {
  Tensor branch;      // output of the latest sub-layer, not yet added to the residual stream
  Tensor hidden;      // [N, F], hidden units of the MLP, only if recompute = gelu
  Tensor dresidual;   // gradient of the residual stream
  Tensor dnorm;       // gradient of a normalised input
  Tensor dattention;  // [B, T, H, d_h], gradient of the attention output
  Tensor dhidden;     // [N, F]
  Tensor dqkv;        // [B, T, 3, H, d_h]
  Tensor delta;       // f32 [B, H, T]

  std::int64_t first_position = 0;  // position of the pass's first token; above 0 only with a KV cache
  bool first_pass = true;           // of the model, since its memory was bound

  void plan(const PassPlan& plan);
};

}  // namespace goat
