// Attention as a straightforward bf16 implementation computes it: bf16 operands and results; logits, softmax
// and all sums in fp32; the attention matrix P and S = dL/dz rounded to bf16 where they enter a matrix
// product; <dout, out> from the rounded out. Its distance from float64 is the error that bf16 costs anyway:
// the kernels may have twice as much.
#pragma once

#include "test/attention_oracle.h"

namespace goat::test {

// What the forward pass left, as AttentionBackward takes it: out [B, T_q, H, d_h] and lse [B, H, T_q].
struct SavedAttention {
  std::vector<double> out, lse;
};

// The operands of `problem` must be bf16 numbers already; it has no bias. The gradients are those that follow
// from `saved`, so that they share the rounding of out with the gradients they are compared with: it is the
// larger part of the error of many sums, and differs by chance.
AttentionOutputs plain_bf16_attention(const AttentionProblem& problem, std::int64_t content_dim,
                                      std::int64_t lanes, const SavedAttention& saved);

}  // namespace goat::test
