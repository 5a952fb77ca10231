// Attention with a prior, for the tests: as a bias added to the logits, and as augmented vectors.
#pragma once

#include <vector>

#include "kernels/device.h"
#include "test/attention_oracle.h"
#include "test/operand.h"
#include "test/prior_oracle.h"

namespace goat::test {

// alpha, beta ~ N(0, 1) at the frequencies of base 10,000, key_bias ~ N(0, bias_scale^2) for `length` keys,
// no slope.
HeadPrior random_prior(Rng& rng, std::int64_t modes, std::int64_t length, double bias_scale);

// The problem with every head's prior (slope included, as lambda j) as a bias [H, T_q, T_k] and zero lanes
// ...
AttentionProblem with_bias(AttentionProblem problem, const std::vector<HeadPrior>& priors,
                           std::int64_t content_dim);

// ... and the same as plain attention of augmented vectors, lambda j included in the key bias. The lanes are
// computed in float64 and rounded to the dtype, the key bias as hi + lo.
AttentionProblem with_lanes(AttentionProblem problem, std::vector<HeadPrior> priors, std::int64_t content_dim,
                            DType dtype = DType::f32);

// Where v is the identity (T_k <= d_h), out is p: the attention matrix [T_q, T_k] of one sequence and head,
// from the kernel.
std::vector<double> attention_matrix(Device& device, AttentionProblem problem, DType dtype = DType::f32);

// How far bf16 lanes may take a logit from the exact prior (goat.md).
double logit_bound(const HeadPrior& prior);

}  // namespace goat::test
