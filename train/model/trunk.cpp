#include "train/model/trunk.h"

#include "train/model/model_parameters.h"

namespace goat {

Trunk::Trunk(const PassPlan& plan, const ParameterSet& parameters, const PositionalParts& parts,
             KvCache* cache)
    : cache_(cache), final_norm_(plan.config, parameters, "final_norm") {
  const std::int64_t tokens = plan.shape.tokens(), width = plan.config.model.width;
  shared_.plan(plan, parts);
  plan_blocks(plan, parameters, parts);
  final_norm_.plan(plan);
  plan.activation("final_stream", {tokens, width}, final_stream_);
  plan.activation("final_norm.out", {tokens, width}, normed_);
}

void Trunk::plan_blocks(const PassPlan& plan, const ParameterSet& parameters, const PositionalParts& parts) {
  const Config& config = plan.config;
  const bool keep = plan.training && config.model.recompute != "block";
  std::shared_ptr<BlockActivations> activations;
  std::shared_ptr<Tensor> entry;
  blocks_.reserve(static_cast<std::size_t>(config.model.layers));  // planned tensors must not move
  for (std::int64_t layer = 0; layer < config.model.layers; ++layer) {
    const std::string prefix = block_prefix(layer);
    if (keep || !activations) {
      activations = std::make_shared<BlockActivations>();
      activations->plan(prefix, plan);
    }
    if (plan.training || !entry) {
      entry = std::make_shared<Tensor>();
      plan.activation(prefix + "entry", {plan.shape.tokens(), config.model.width}, *entry);
    }
    const LayerCache* cache = cache_ ? &cache_->layers[static_cast<std::size_t>(layer)] : nullptr;
    blocks_.emplace_back(config, parameters, parts, prefix, cache, activations, entry).plan(plan);
  }
}

const Tensor& Trunk::forward(Device& device, const Tensor& stream, PassHooks* hooks) {
  shared_.first_position = first_position();
  Tensor residual = stream, branch;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    if (hooks) hooks->before_forward(layer + 1);
    residual = blocks_[layer].forward(device, shared_, residual, branch);
    branch = shared_.branch;
    if (attention_observer_)
      attention_observer_(static_cast<std::int64_t>(layer), blocks_[layer].attention_reads());
  }
  if (hooks) hooks->before_forward(blocks_.size() + 1);
  final_norm_.forward(device, shared_, normed_, final_stream_, branch, residual);
  shared_.first_pass = false;
  if (cache_) cache_->length += stream.shape[0];
  return normed_;
}

// The head's gradients are complete before this begins.
const Tensor& Trunk::backward(Device& device, PassHooks* hooks) {
  device.set_zero(shared_.dresidual.data, shared_.dresidual.bytes());
  final_norm_.backward(device, shared_, shared_.dresidual, shared_.dnorm, final_stream_);
  if (hooks) hooks->after_backward(blocks_.size() + 1);
  for (std::size_t layer = blocks_.size(); layer-- > 0;) {
    blocks_[layer].backward(device, shared_);
    if (hooks) hooks->after_backward(layer + 1);
  }
  return shared_.dresidual;
}

}  // namespace goat
