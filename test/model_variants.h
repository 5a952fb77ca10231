// The variants of the model that whole-model tests run through, as settings on top of a small config.
#pragma once

#include <string>
#include <vector>

namespace goat::test {

struct ModelVariant {
  const char* name;
  std::vector<std::string> settings;
};

inline const std::vector<ModelVariant>& model_variants() {
  static const std::vector<ModelVariant> variants = {
      {"goat, free slope", {}},
      {"goat, softplus slope", {"prior.recency=softplus", "prior.init=alibi"}},
      {"goat, no slope", {"prior.recency=off"}},
      {"goat, learned frequencies", {"prior.learned_frequencies=true"}},
      {"goat, wide lanes", {"prior.lane_dim=9"}},
      {"goat, unscaled", {"model.attn_scale=none"}},
      {"goat, gelu recomputed", {"model.recompute=gelu"}},
      {"no positions", {"model.attention=none"}},
  };
  return variants;
}

}  // namespace goat::test
