// KvCache: keys and values of earlier tokens, so that generating a token computes only that token.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/memory/memory.h"
#include "train/model/model_parameters.h"

namespace goat {

// One layer's part of a cache of P tokens. qkv: the QKV projection writes its rows directly into the cache.
// This saves copying keys and values, but the queries that it also holds are not read again.
struct LayerCache {
  Tensor qkv;       // [1, P, H + 2 H_k, d_h]; absent with model.qk_norm
  Tensor k, v;      // [1, P, H_k, d_h]; only with model.qk_norm
  Tensor key_bias;  // f64 [1, H, P]; only with a part that gives attention a key bias

  // `name` starts the names of the tensors. dtype: that of the model's activations.
  void plan(const Config& config, DType dtype, std::int64_t tokens, const std::string& name,
            MemoryPlan& memory) {
    const auto add = [&](const char* part, std::int64_t heads, Tensor& view) {
      memory.add(MemoryCategory::activations, name + part, dtype, {1, tokens, heads, config.head_dim()},
                 view);
    };
    if (config.model.qk_norm) {
      add(".k", config.kv_heads(), k);
      add(".v", config.kv_heads(), v);
    } else {
      add("", config.qkv_heads(), qkv);
    }
    if (config.has_part("forget"))
      memory.add(MemoryCategory::activations, name + ".key_bias", DType::f64, {1, config.model.heads, tokens},
                 key_bias);
  }
};

// Holds one sequence. Passes of any number of tokens may use a cache one after the other, while the weights
// do not change.
struct KvCache {
  KvCache(const Config& config, DType dtype, std::int64_t tokens, MemoryPlan& memory)
      : capacity(tokens), layers(static_cast<std::size_t>(config.model.layers)) {
    std::int64_t layer = 0;
    for (LayerCache& cache : layers)
      cache.plan(config, dtype, tokens, block_prefix(layer++) + "kv_cache", memory);
  }
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t capacity;    // number of tokens it can hold
  std::int64_t length = 0;  // number of tokens it holds = position of the next pass's first token
  std::vector<LayerCache> layers;
};

}  // namespace goat
