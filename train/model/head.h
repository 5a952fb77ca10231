// Head: the logits of each token, and the loss of the token that follows it.
#pragma once

#include <span>

#include "train/memory/parameters.h"
#include "train/memory/pass_plan.h"

namespace goat {

// The weight is the embedding's if model.tied, otherwise "head.weight".
class Head {
 public:
  Head(const PassPlan& plan, const ParameterSet& parameters);

  void load(Device& device, std::span<const std::int32_t> targets) const;  // [B, T]; -1 is not counted
  // Computes the loss of each token from the final norm's output `normed` [N, C]. If dnormed [N, C] is
  // present, also writes the gradient of token_weight * (sum of losses) there and adds to the weight's
  // gradient. Works in chunks of rows, so that memory never holds the logits of all tokens.
  void compute_losses(Device& device, const Tensor& normed, float token_weight, const Tensor& dnormed) const;
  // Logits [1, V] of the token that follows `row` of normed, in the activations' dtype. Valid until the next
  // call.
  Tensor next_logits(Device& device, const Tensor& normed, std::int64_t row) const;

  const Tensor& losses() const { return losses_; }  // f32 [N]

 private:
  const Parameter* weight_;  // [V_p, C]
  std::int64_t vocab_;
  bool tf32_;       // model.tf32 = all
  Tensor targets_;  // i32 [N]
  Tensor logits_;   // [chunk, V_p]
  Tensor losses_;   // f32 [N]
};

}  // namespace goat
