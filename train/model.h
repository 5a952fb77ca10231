// Model: embedding, blocks, final norm and tied head over a ParameterSet, for micro-batches of one shape.
#pragma once

#include <memory>
#include <vector>

#include "train/block.h"
#include "train/config.h"
#include "train/parameters.h"

namespace goat {

class Model {
 public:
  // Plans the activations (and, where training, the backward workspace). Call bind() once `memory` is allocated and before the first pass.
  Model(const Config& config, BatchShape shape, bool training, const ParameterSet& parameters, MemoryPlan& memory);
  void bind(Device& device);

  // A micro-batch: B*T inputs and targets (-1: not counted), row-major [B, T].
  void load(Device& device, const std::vector<std::int32_t>& inputs, const std::vector<std::int32_t>& targets) const;

  // Per-token losses of the loaded micro-batch -> losses(), f32 [N].
  void forward(Device& device);
  // The same, and adds the gradient of token_weight * sum of losses to the parameters' gradients.
  void forward_backward(Device& device, float token_weight);
  const Tensor& losses() const { return losses_; }
  BatchShape shape() const { return shape_; }

 private:
  void run_blocks(Device& device);
  // The head in chunks of rows, so that logits never exist for all tokens: losses, and where `backward` the gradient at the final norm's output.
  void run_head(Device& device, float token_weight, bool backward);

  BatchShape shape_;
  const Config config_;
  SharedBuffers shared_;
  const Parameter* embedding_;
  NormLayer final_norm_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Tensor tokens_, targets_;        // i32 [N]
  Tensor embedded_;                // [N, C]
  Tensor final_stream_, normed_;   // [N, C] residual stream after the last block; its norm
  Tensor logits_;                  // [chunk, V_p]
  Tensor losses_;                  // f32 [N]
};

}  // namespace goat
