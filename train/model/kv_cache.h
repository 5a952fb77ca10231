// KvCache: keys and values of earlier tokens, so that generating a token computes only that token.
#pragma once

#include <vector>

#include "train/config/config.h"
#include "train/memory/memory.h"

namespace goat {

// Holds one sequence. Passes of any number of tokens may use a cache one after the other, while the weights
// do not change.
struct KvCache {
  // dtype: that of the model's activations.
  KvCache(const Config& config, DType dtype, std::int64_t tokens, MemoryPlan& memory);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t capacity;    // number of tokens it can hold
  std::int64_t length = 0;  // number of tokens it holds = position of the next pass's first token
  // For each layer [1, capacity, 3, H, d_h]. The QKV projection writes its rows directly into the cache. This
  // saves copying keys and values, but a third of the memory holds queries that are not read again.
  std::vector<Tensor> qkv;
};

}  // namespace goat
