#include "train/model/kv_cache.h"

#include "train/model/model_parameters.h"

namespace goat {

KvCache::KvCache(const Config& config, DType dtype, std::int64_t tokens, MemoryPlan& memory)
    : capacity(tokens), qkv(static_cast<std::size_t>(config.model.layers)) {
  for (std::size_t layer = 0; layer < qkv.size(); ++layer)
    memory.add(MemoryCategory::activations, block_prefix(static_cast<std::int64_t>(layer)) + "kv_cache",
               dtype, {1, capacity, 3, config.model.heads, config.head_dim()}, qkv[layer]);
}

}  // namespace goat
