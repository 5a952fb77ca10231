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
  // Plans the activations and, if training, the backward workspace. Call bind() after `memory` is allocated
  // and before the first pass. With a cache, the tokens of a pass follow the tokens that the cache holds and
  // are added to it. The cache must outlive the model.
  Model(const Config& config, BatchShape shape, bool training, const ParameterSet& parameters,
        MemoryPlan& memory, KvCache* cache = nullptr);
  void bind(Device& device);

  // Loads a micro-batch: B*T inputs and targets, row-major [B, T]. A target of -1 is not counted. Throws
  // std::invalid_argument if the number of tokens is not B*T.
  void load(Device& device, std::span<const std::int32_t> inputs,
            std::span<const std::int32_t> targets) const;

  void load(Device& device, std::span<const std::int32_t> inputs) const;  // enough for next_logits

  // Runs a pass and returns the logits f32 [1, V] of the token that follows the loaded input `row`,
  // 0 <= row < N.
  Tensor next_logits(Device& device, std::int64_t row);
  // Computes the loss of each loaded token: losses(), f32 [N].
  void forward(Device& device);
  // Also adds the gradient of token_weight * (sum of losses) to the parameters' gradients.
  void forward_backward(Device& device, float token_weight);
  const Tensor& losses() const { return losses_; }

  // If set, the observer is called in every pass after each block, with the block's index and its q, k, v
  // [B, T, 3, H, d_h] on the device (Block::qkv).
  using AttentionObserver = std::function<void(std::int64_t layer, const Tensor& qkv)>;
  void set_attention_observer(AttentionObserver observer) { attention_observer_ = std::move(observer); }

  BatchShape shape() const { return shape_; }

 private:
  void run_blocks(Device& device);
  // Runs the head in chunks of rows, so that memory never holds the logits of all tokens. Computes the losses
  // and, if `backward`, the gradient of the final norm's output.
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
  Tensor final_stream_, normed_;  // [N, C]: residual stream after the last block; its norm
  Tensor logits_;                 // [chunk, V_p]
  Tensor losses_;                 // f32 [N]
};

}  // namespace goat
