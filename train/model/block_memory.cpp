#include "train/model/block_memory.h"

namespace goat {

void BlockMemory::plan(const PassPlan& plan) {
  const Config& config = plan.config;
  const BatchShape& shape = plan.shape;
  const std::int64_t tokens = shape.tokens(), width = config.model.width, heads = config.model.heads,
                     head_dim = config.head_dim();
  plan.activation("branch", {tokens, width}, branch);
  if (config.model.recompute == "gelu") plan.activation("hidden", {tokens, config.ff_width()}, hidden);
  if (!plan.training) return;
  plan.workspace("dresidual", {tokens, width}, dresidual);
  plan.workspace("dnorm", {tokens, width}, dnorm);
  plan.workspace("dattention", {shape.sequences, shape.length, heads, head_dim}, dattention);
  plan.workspace("dhidden", {tokens, config.ff_width()}, dhidden);
  plan.workspace("dqkv", {shape.sequences, shape.length, 3, heads, head_dim}, dqkv);
  plan.workspace("delta", DType::f32, {shape.sequences, heads, shape.length}, delta);
}

}  // namespace goat
