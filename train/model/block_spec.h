// BlockSpec: what a transformer block is made of.
#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace goat {

enum class NormKind : std::uint8_t { layer, rms };   // LayerNorm, RMSNorm
enum class MlpKind : std::uint8_t { gelu, swiglu };  // down(gelu(up x)), down(silu(gate x) * up x)

struct BlockSpec {
  NormKind norm;
  MlpKind mlp;
  bool biases;  // of linear layers and LayerNorm; RMSNorm has none
};

// The spec of model.block, "gpt" or "llama", and model.bias.
inline BlockSpec block_spec(const Config& config) {
  const bool llama = config.model.block == "llama";
  const bool biases = config.model.bias == "auto" ? !llama : config.model.bias == "true";
  if (llama) return {NormKind::rms, MlpKind::swiglu, biases};
  return {NormKind::layer, MlpKind::gelu, biases};
}

}  // namespace goat
