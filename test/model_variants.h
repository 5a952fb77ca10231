// The variants of the model that whole-model tests run through, as settings on top of a small config.
#pragma once

#include <string>
#include <vector>

namespace goat::test {

struct ModelVariant {
  std::string name;
  std::vector<std::string> settings;
};

// Every block with every attention.
inline const std::vector<ModelVariant>& blocks_and_attentions() {
  static const std::vector<ModelVariant> variants = [] {
    std::vector<ModelVariant> all;
    for (const std::string block : {"gpt", "llama"})
      for (const std::string attention : {"goat", "rope", "none"})
        all.push_back({block + ", " + attention, {"model.block=" + block, "model.attention=" + attention}});
    return all;
  }();
  return variants;
}

// Those, and one variant for each setting that changes what a model computes or in which order.
inline const std::vector<ModelVariant>& model_variants() {
  static const std::vector<ModelVariant> variants = [] {
    std::vector<ModelVariant> all = blocks_and_attentions();
    const std::vector<ModelVariant> others = {
        {"gpt, goat, softplus slope", {"prior.recency=softplus", "prior.init=alibi"}},
        {"gpt, goat, no slope", {"prior.recency=off"}},
        {"gpt, goat, learned frequencies", {"prior.learned_frequencies=true"}},
        {"gpt, goat, wide lanes", {"prior.lane_dim=9"}},
        {"gpt, goat, unscaled", {"model.attn_scale=none"}},
        {"gpt, goat, untied", {"model.tied=false"}},
        {"gpt, goat, gelu recomputed", {"model.recompute=gelu"}},
        {"gpt, goat, gelu by the library", {"model.epilogue=library"}},
        {"llama, rope of base 50, untied",
         {"model.block=llama", "model.attention=rope", "model.rope_base=50", "model.tied=false"}},
        {"llama, goat, hidden product recomputed", {"model.block=llama", "model.recompute=gelu"}},
        {"llama, goat, blocks recomputed", {"model.block=llama", "model.recompute=block"}},
    };
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return variants;
}

}  // namespace goat::test
