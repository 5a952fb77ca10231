// The parameters of a model: names, shapes, weight decay and initial values.
#pragma once

#include <cstdint>
#include <string>

#include "train/config/config.h"
#include "train/memory/parameters.h"

namespace goat {

std::string block_prefix(std::int64_t layer);  // "blocks.3.", the start of its tensors' names

// Rows of the embedding and the head on the device: the vocabulary padded to a multiple of 64, for the head's
// GEMM.
std::int64_t padded_vocab(const Config& config);

// The dtype of activations and of the weights that GEMMs read: bf16 or f32, as model.precision says; "auto"
// is bf16 on every device but the cpu. Always f32 on the cpu: see factors_of() for bf16 there.
DType model_dtype(const Config& config, const Device& device);

void declare_parameters(const Config& config, ParameterSet& parameters);

struct ParameterCounts {
  std::int64_t trainable = 0;  // all stored parameters, including the prior's
  std::int64_t prior = 0;      // the prior's part of `trainable`
  // Counted as in the paper: q and k projections of full width, without the prior.
  std::int64_t full_projections = 0;
};
ParameterCounts count_parameters(const Config& config);

// 6 N_matmul + 6 L C T: forward and backward; the causal half of attention is counted. N_matmul includes the
// head, but not the embedding lookup.
double flops_per_token(const Config& config);

}  // namespace goat
