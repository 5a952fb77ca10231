// Head: the logits of each token, and the loss of the token that follows it.
#pragma once

#include "train/memory/parameters.h"
#include "train/memory/pass_plan.h"
#include "train/model/layers.h"

namespace goat {

// The weight is the embedding's if model.tied, otherwise "head.weight".
class Head {
 public:
  Head(const PassPlan& plan, const ParameterSet& parameters);

  // Computes the loss of each token from the final norm's output `normed` [N, C]. If dnormed [N, C] is
  // present, also writes the gradient of weight * sum_n token_weights[n] losses[n] there and adds to the
  // weight's gradient. token_weights: f32 [N], or absent: all 1. Works in chunks of rows, so that memory
  // never holds the logits of all tokens.
  void compute_losses(Device& device, const Tensor& normed, float weight, const Tensor& token_weights,
                      const Tensor& dnormed) const;
  // Logits [rows, V_p] of the tokens that follow the rows first .. first + rows - 1 of normed, in the
  // activations' dtype; the vocabulary is the first V columns. At most most_rows(). Valid until the next
  // call.
  Tensor logits(Device& device, const Tensor& normed, std::int64_t first, std::int64_t rows) const;
  std::int64_t most_rows() const { return logits_.shape[0]; }
  // The same of one row, without the padding: [1, V].
  Tensor next_logits(Device& device, const Tensor& normed, std::int64_t row) const;

  const Tensor& targets() const { return targets_; }  // i32 [N], to be filled; -1 is not counted
  const Tensor& losses() const { return losses_; }    // f32 [N]

 private:
  const Parameter* weight_;  // [V_p, C]
  std::int64_t vocab_;
  Factors factors_;
  Tensor targets_;  // i32 [N]
  Tensor logits_;   // [chunk, V_p]
  Tensor losses_;   // f32 [N]
};

}  // namespace goat
