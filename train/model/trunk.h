// Trunk: the blocks and the final norm.
#pragma once

#include <functional>
#include <vector>

#include "train/memory/pass_hooks.h"
#include "train/model/block.h"
#include "train/model/kv_cache.h"

namespace goat {

class Trunk {
 public:
  // Plans one set of activations for each block if backward needs them, otherwise one set for all. `parts`
  // and `cache` (optional) must outlive the trunk.
  Trunk(const PassPlan& plan, const ParameterSet& parameters, const PositionalParts& parts, KvCache* cache);

  void bind(Device& device) { shared_.bind(device); }  // call after allocation

  // Position of the next pass's first token; above 0 only with a KV cache.
  std::int64_t first_position() const { return cache_ ? cache_->length : 0; }
  // Returns the final norm's output [N, C] for the residual stream [N, C]. Tokens of the pass are added to
  // the cache. Of the hooks' units, the first block is 1, and the final norm and the head are the last.
  const Tensor& forward(Device& device, const Tensor& stream, PassHooks* hooks = nullptr);
  const Tensor& output() const { return normed_; }  // of the latest pass
  // The gradient of that output [N, C], to be written before backward.
  const Tensor& output_gradient() const { return shared_.dnorm; }
  // Returns the gradient of the stream and adds to the parameters' gradients.
  const Tensor& backward(Device& device, PassHooks* hooks = nullptr);

  // If set, called in every forward pass after each block, with the block's index and what its attention read
  // (Block::attention_reads).
  using AttentionObserver = std::function<void(std::int64_t layer, const AttentionReads& reads)>;
  void set_attention_observer(AttentionObserver observer) { attention_observer_ = std::move(observer); }

 private:
  void plan_blocks(const PassPlan& plan, const ParameterSet& parameters, const PositionalParts& parts);

  KvCache* cache_;
  BlockMemory shared_;
  std::vector<Block> blocks_;
  NormLayer final_norm_;
  AttentionObserver attention_observer_;
  Tensor final_stream_, normed_;  // [N, C]: residual stream after the last block; its norm
};

}  // namespace goat
