// Which parameters a model has: names, shapes, decay and initial values, all in one place.
#pragma once

#include "train/config/config.h"
#include "train/model/parameters.h"

namespace goat {

// Rows of the embedding on the device: the vocabulary padded to a multiple of 64, for the head's GEMM.
std::int64_t padded_vocab(const Config& config);

void declare_parameters(const Config& config, ParameterSet& parameters);

struct ParameterCounts {
  std::int64_t trainable = 0;  // what is stored, the prior included
  std::int64_t prior = 0;      // of these, the prior's
  std::int64_t full_projections =
      0;  // the paper's convention: q and k projections of full width, the prior not counted
};
ParameterCounts count_parameters(const Config& config);

// 6 N_matmul + 6 L C T: forward and backward, causal attention counted once; N_matmul has the tied head and
// no embedding lookup.
double flops_per_token(const Config& config);

}  // namespace goat
