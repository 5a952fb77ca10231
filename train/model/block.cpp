#include "train/model/block.h"

namespace goat {

void BlockActivations::plan(const std::string& prefix, const PassPlan& plan) {
  const auto add = [&](const char* name, Tensor& view) {
    plan.activation(prefix + name, {plan.shape.tokens(), plan.config.model.width}, view);
  };
  add("norm1", norm1);
  attention.plan(prefix + "attention.", plan);
  add("residual", residual);
  add("norm2", norm2);
  mlp.plan(prefix + "mlp.", plan);
}

Block::Block(const Config& config, const ParameterSet& parameters, const PositionalParts& parts,
             const std::string& prefix, const LayerCache* cache,
             std::shared_ptr<BlockActivations> activations, std::shared_ptr<Tensor> entry)
    : recompute_block_(config.model.recompute == "block"),
      norm1_(config, parameters, prefix + "norm1"),
      attention_(config, parameters, parts, prefix + "attn.", cache),
      norm2_(config, parameters, prefix + "norm2"),
      mlp_(config, parameters, prefix + "mlp."),
      saved_(std::move(activations)),
      entry_(std::move(entry)) {}

void Block::plan(const PassPlan& plan) {
  norm1_.plan(plan);
  attention_.plan(plan);
  norm2_.plan(plan);
}

Tensor Block::forward(Device& device, const BlockMemory& shared, const Tensor& residual,
                      const Tensor& branch) {
  stream_ = branch ? *entry_ : residual;
  norm1_.forward(device, shared, saved_->norm1, *entry_, branch ? branch : residual,
                 branch ? residual : Tensor{});
  forward_after_norm1(device, shared);
  mlp_.forward_out(device, shared, saved_->mlp, shared.branch);
  return saved_->residual;
}

// shared.branch holds the attention output, which needs no memory of its own: norm2 saves its sum with the
// stream in saved_->residual.
void Block::forward_after_norm1(Device& device, const BlockMemory& shared) {
  attention_.forward(device, shared, saved_->attention, shared.branch, saved_->norm1);
  norm2_.forward(device, shared, saved_->norm2, saved_->residual, shared.branch, stream_);
  mlp_.forward_hidden(device, shared, saved_->mlp, saved_->norm2);
}

void Block::backward(Device& device, const BlockMemory& shared) {
  if (recompute_block_) {
    norm1_.forward(device, shared, saved_->norm1, {}, stream_, {});
    forward_after_norm1(device, shared);
  }
  mlp_.backward(device, shared, saved_->mlp, shared.dnorm, shared.dresidual, saved_->norm2);
  norm2_.backward(device, shared, shared.dresidual, shared.dnorm, saved_->residual);
  attention_.backward(device, shared, saved_->attention, shared.dnorm, shared.dresidual, saved_->norm1);
  norm1_.backward(device, shared, shared.dresidual, shared.dnorm, stream_);
}

}  // namespace goat
