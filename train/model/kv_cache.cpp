#include "train/model/kv_cache.h"

namespace goat {

KvCache::KvCache(const Config& config, std::int64_t tokens, MemoryPlan& memory)
    : capacity(tokens), qkv(static_cast<std::size_t>(config.model.layers)) {
  for (std::size_t layer = 0; layer < qkv.size(); ++layer)
    memory.add(MemoryCategory::activations, "blocks." + std::to_string(layer) + ".kv_cache", DType::f32,
               {1, capacity, 3, config.model.heads, config.head_dim()}, qkv[layer]);
}

}  // namespace goat
