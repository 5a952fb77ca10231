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
  bool biases;  // of linear layers and norms
};

// The spec of model.block: "gpt" or "llama".
inline BlockSpec block_spec(const Config& config) {
  if (config.model.block == "llama") return {NormKind::rms, MlpKind::swiglu, false};
  return {NormKind::layer, MlpKind::gelu, true};
}

}  // namespace goat
