// KvCache: what attention keeps of the tokens that have passed, so that generating a token computes that
// token alone.
#pragma once

#include <vector>

#include "train/config/config.h"
#include "train/model/memory.h"

namespace goat {

// One sequence. Passes of any number of tokens may share a cache, one after the other, while the weights stay
// as they are.
struct KvCache {
  KvCache(const Config& config, std::int64_t tokens, MemoryPlan& memory);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::int64_t capacity;    // tokens it can hold
  std::int64_t length = 0;  // tokens it holds: the position of the next pass's first token
  // Of each layer [1, capacity, 3, H, d_h]. The projection writes its rows where they stay; the price of not
  // copying keys and values is a third of the memory for queries that are not read again.
  std::vector<Tensor> qkv;
};

}  // namespace goat
