// Model: embedding, blocks, final norm and tied head over a ParameterSet, for micro-batches of one shape.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "train/config/config.h"
#include "train/model/block.h"
#include "train/model/parameters.h"

namespace goat {

class Model {
 public:
  // Plans the activations (and, where training, the backward workspace). Call bind() once `memory` is
  // allocated and before the first pass. With a cache, which must outlive the model, a pass's tokens follow
  // those that the cache holds, and it holds them as well afterwards.
  Model(const Config& config, BatchShape shape, bool training, const ParameterSet& parameters,
        MemoryPlan& memory, KvCache* cache = nullptr);
  void bind(Device& device);

  // A micro-batch: B*T inputs and targets (-1: not counted), row-major [B, T].
  void load(Device& device, std::span<const std::int32_t> inputs,
            std::span<const std::int32_t> targets) const;

  void load(Device& device, std::span<const std::int32_t> inputs) const;  // for next_logits

  // The logits of the token that follows the loaded input `row` of N -> f32 [1, V].
  Tensor next_logits(Device& device, std::int64_t row);
  // Per-token losses of the loaded micro-batch -> losses(), f32 [N].
  void forward(Device& device);
  // The same, and adds the gradient of token_weight * sum of losses to the parameters' gradients.
  void forward_backward(Device& device, float token_weight);
  const Tensor& losses() const { return losses_; }

  // Called in every pass after each block, with the block's index and its q, k, v [B, T, 3, H, d_h] on the
  // device (Block::qkv). Empty: nobody watches.
  using AttentionObserver = std::function<void(std::int64_t layer, const Tensor& qkv)>;
  void set_attention_observer(AttentionObserver observer) { attention_observer_ = std::move(observer); }

  BatchShape shape() const { return shape_; }

 private:
  void run_blocks(Device& device);
  // The head in chunks of rows, so that logits never exist for all tokens: losses, and where `backward` the
  // gradient at the final norm's output.
  void run_head(Device& device, float token_weight, bool backward);

  BatchShape shape_;
  const Config config_;
  bool tf32_;  // model.tf32 = all
  KvCache* cache_;
  SharedBuffers shared_;
  const Parameter* embedding_;
  NormLayer final_norm_;
  std::vector<std::unique_ptr<Block>> blocks_;
  AttentionObserver attention_observer_;
  Tensor tokens_, targets_;       // i32 [N]
  Tensor embedded_;               // [N, C]
  Tensor final_stream_, normed_;  // [N, C] residual stream after the last block; its norm
  Tensor logits_;                 // [chunk, V_p]
  Tensor losses_;                 // f32 [N]
};

}  // namespace goat
