// Stem: turns tokens into the residual stream.
#pragma once

#include "train/memory/parameters.h"
#include "train/memory/pass_plan.h"
#include "train/positions/positional_part.h"

namespace goat {

class Stem {
 public:
  // `parts` must outlive the stem.
  Stem(const PassPlan& plan, const ParameterSet& parameters, const PositionalParts& parts);

  const Tensor& tokens() const { return tokens_; }  // i32 [N], to be filled
  // Returns the stream [N, C]: the tokens' rows of the embedding, plus what the positional parts add. Row 0
  // of a sequence is at `first_position`.
  const Tensor& forward(Device& device, std::int64_t first_position) const;
  // Adds to the parameters' gradients from that of the stream.
  void backward(Device& device, const Tensor& dstream) const;

 private:
  const Parameter* embedding_;
  const PositionalParts& parts_;
  Tensor tokens_;  // i32 [N]
  Tensor stream_;  // [N, C]
};

}  // namespace goat
