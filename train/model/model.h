// Model: stem, trunk and head over a ParameterSet, for micro-batches of one shape.
#pragma once

#include <span>
#include <utility>

#include "train/config/config.h"
#include "train/memory/parameters.h"
#include "train/memory/pass_hooks.h"
#include "train/memory/pass_plan.h"
#include "train/model/head.h"
#include "train/model/stem.h"
#include "train/model/trunk.h"

namespace goat {

class Model {
 public:
  // Plans the activations and, if training, the backward workspace, for passes on `device`. Call bind() after
  // `memory` is allocated and before the first pass. With a cache, the tokens of a pass follow the tokens
  // that the cache holds and are added to it. The cache must outlive the model. A model with a cache cannot
  // train.
  Model(const Config& config, const DeviceInfo& device, BatchShape shape, bool training,
        const ParameterSet& parameters, MemoryPlan& memory, KvCache* cache = nullptr);
  Model(const Model&) = delete;  // the plan refers to its tensors
  void bind(Device& device);

  // Loads a micro-batch: B*T inputs and targets, row-major [B, T]. A target of -1 is not counted. Throws
  // std::invalid_argument if the number of tokens is not B*T.
  void load(Device& device, std::span<const std::int32_t> inputs,
            std::span<const std::int32_t> targets) const;
  void load(Device& device, std::span<const std::int32_t> inputs) const;  // enough for next_logits
  // The same from memory of Device::allocate_host, which the device reads later.
  void enqueue_load(Device& device, std::span<const std::int32_t> inputs,
                    std::span<const std::int32_t> targets) const;

  // Runs a pass and returns the logits [1, V] of the token that follows the loaded input `row`, 0 <= row < N,
  // in the activations' dtype.
  Tensor next_logits(Device& device, std::int64_t row);
  // Computes the loss of each loaded token: losses(), f32 [N].
  void forward(Device& device);
  // Also adds the gradient of `weight` * sum_n token_weights[n] losses[n] to the parameters' gradients.
  // token_weights: f32 [N], or absent: all 1.
  // The units of the hooks are the embedding, each block, and what follows the last block.
  void forward_backward(Device& device, float weight, const Tensor& token_weights = {},
                        PassHooks* hooks = nullptr);
  const Tensor& losses() const { return head_.losses(); }
  // After forward(): the logits [rows, V_p] of the tokens that follow the loaded inputs first ..
  // first + rows - 1, for at most most_logit_rows() rows. See Head::logits.
  Tensor logits(Device& device, std::int64_t first, std::int64_t rows) const {
    return head_.logits(device, trunk_.output(), first, rows);
  }
  std::int64_t most_logit_rows() const { return head_.most_rows(); }

  // See Trunk::set_attention_observer.
  void set_attention_observer(Trunk::AttentionObserver observer) {
    trunk_.set_attention_observer(std::move(observer));
  }

  BatchShape shape() const { return shape_; }

 private:
  Model(const PassPlan& plan, const ParameterSet& parameters, KvCache* cache);

  BatchShape shape_;
  PositionalParts parts_;
  Stem stem_;
  Trunk trunk_;
  Head head_;
};

}  // namespace goat
