// The variants of the model that whole-model tests run through, as settings on top of a small config.
#pragma once

#include <string>
#include <vector>

namespace goat::test {

struct ModelVariant {
  std::string name;
  std::vector<std::string> settings;
  bool any_length = true;  // false: only sequences of up to data.seq_len tokens
};

// Every block with every kind of attention, and one block with each other way to learn of positions.
inline const std::vector<ModelVariant>& blocks_and_attentions() {
  static const std::vector<ModelVariant> variants = [] {
    std::vector<ModelVariant> all;
    for (const std::string block : {"gpt", "llama"})
      for (const std::string attention : {"goat", "rope", "none"})
        all.push_back({block + ", " + attention, {"model.block=" + block, "model.attention=" + attention}});
    const std::vector<ModelVariant> others = {
        {"gpt, alibi", {"model.attention=alibi"}},
        {"llama, alibi_learned", {"model.block=llama", "model.attention=alibi_learned"}},
        {"llama, rope_pi", {"model.block=llama", "model.attention=rope_pi"}},
        {"llama, goat+rope", {"model.block=llama", "model.attention=goat+rope"}},
        {"gpt, sinusoidal", {"model.attention=sinusoidal"}},
        {"gpt, learned", {"model.attention=learned"}, false},
        {"gpt, forget", {"model.attention=forget"}},
        {"llama, goat+forget", {"model.block=llama", "model.attention=goat+forget"}},
        {"llama, rope, one head of keys", {"model.block=llama", "model.attention=rope", "model.kv_heads=1"}},
        {"llama, goat+rope, q and k normed",
         {"model.block=llama", "model.attention=goat+rope", "model.qk_norm=true"}},
    };
    all.insert(all.end(), others.begin(), others.end());
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
        {"gpt, half of rope", {"model.attention=rope", "model.rope_fraction=0.5"}},
        {"gpt, alibi of three heads", {"model.attention=alibi", "model.heads=3"}},
        {"gpt, goat without a slope, learned positions, part of rope_pi, alibi",
         {"model.attention=goat+rope_pi+alibi+learned", "prior.recency=off", "model.rope_fraction=0.7"},
         false},
        {"gpt, goat, large eps, no biases", {"model.norm_eps=0.2", "model.bias=false"}},
        {"llama, goat, large eps, biases", {"model.block=llama", "model.norm_eps=0.2", "model.bias=true"}},
        {"gpt, goat, one head of keys, learned frequencies",
         {"model.kv_heads=1", "prior.learned_frequencies=true"}},
        {"llama, goat+rope, two heads of keys for four",
         {"model.block=llama", "model.attention=goat+rope", "model.heads=4", "model.width=48",
          "model.kv_heads=2"}},
        {"gpt, goat, q and k normed, large eps, unscaled, blocks recomputed",
         {"model.qk_norm=true", "model.norm_eps=0.2", "model.attn_scale=none", "model.recompute=block"}},
        {"llama, rope, q and k normed, biases, one head of keys",
         {"model.block=llama", "model.attention=rope", "model.qk_norm=true", "model.bias=true",
          "model.kv_heads=1"}},
        {"llama, goat+rope+forget, two heads of keys for four, blocks recomputed",
         {"model.block=llama", "model.attention=goat+rope+forget", "model.heads=4", "model.width=48",
          "model.kv_heads=2", "model.recompute=block"}},
        {"gpt, alibi and forget, q and k normed", {"model.attention=alibi+forget", "model.qk_norm=true"}},
        {"llama, goat, hidden product recomputed", {"model.block=llama", "model.recompute=gelu"}},
        {"llama, goat, blocks recomputed", {"model.block=llama", "model.recompute=block"}},
    };
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return variants;
}

}  // namespace goat::test
