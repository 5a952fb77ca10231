#include "train/model/block_memory.h"

#include <algorithm>

#include "train/model/block_spec.h"

namespace goat {

void QkvGradients::plan(const PassPlan& plan) {
  const std::int64_t heads = plan.config.model.heads, kv_heads = plan.config.kv_heads(),
                     tokens = plan.shape.tokens(), width = plan.config.model.width;
  const auto add = [&](const char* name, std::int64_t of, Tensor& view) {
    plan.workspace(name, {plan.shape.sequences, plan.shape.length, of, plan.config.head_dim()}, view);
  };
  add("dq", heads, dq);
  add("dk", kv_heads, dk);
  add("dv", kv_heads, dv);
  add("draw_q", heads, draw_q);
  add("draw_k", kv_heads, draw_k);
  plan.workspace("dinputs", {3, tokens, width}, dinputs);
  if (plan.dtype != DType::f32) plan.workspace("dinput_sum", DType::f32, {tokens, width}, dinput_sum);
}

void BlockMemory::plan(const PassPlan& plan, const PositionalParts& positions) {
  const Config& config = plan.config;
  const BatchShape& shape = plan.shape;
  const std::int64_t tokens = shape.tokens(), width = config.model.width;
  const BlockSpec spec = block_spec(config);
  const bool without_bias = spec.norm == NormKind::layer && !spec.biases;
  plan.activation("branch", {tokens, width}, branch);
  if (config.model.recompute == "gelu") plan.activation("hidden", {tokens, config.ff_width()}, hidden);
  if (without_bias) plan.workspace("no_bias", DType::f32, {width}, no_bias);
  if (!plan.training) return;
  plan_gradients(plan);
  if (std::ranges::any_of(positions, [](const auto& part) { return part->reads_dkey_bias(); }))
    plan.workspace("dkey_bias", DType::f32, {shape.sequences, config.model.heads, shape.length}, dkey_bias);
  if (without_bias) plan.workspace("no_dbias", DType::f32, {width}, no_dbias);
}

void BlockMemory::plan_gradients(const PassPlan& plan) {
  const Config& config = plan.config;
  const BatchShape& shape = plan.shape;
  const std::int64_t tokens = shape.tokens(), width = config.model.width, heads = config.model.heads,
                     head_dim = config.head_dim();
  plan.workspace("dresidual", {tokens, width}, dresidual);
  plan.workspace("dnorm", {tokens, width}, dnorm);
  plan.workspace("dattention", {shape.sequences, shape.length, heads, head_dim}, dattention);
  plan.workspace("dhidden", {tokens, config.ff_width()}, dhidden);
  if (config.model.qk_norm)
    parts.plan(plan);
  else
    plan.workspace("dqkv", {shape.sequences, shape.length, config.qkv_heads(), head_dim}, dqkv);
  plan.workspace("delta", DType::f32, {shape.sequences, heads, shape.length}, delta);
}

void BlockMemory::bind(Device& device) {
  first_pass = true;
  for (const Tensor& zeros : {no_bias, no_dbias})
    if (zeros) device.set_zero(zeros.data, zeros.bytes());
}

}  // namespace goat
