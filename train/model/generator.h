// Generator: a sequence that grows by one token at a time, and the model's logits of the token that comes
// next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/model/kv_cache.h"
#include "train/model/model.h"

namespace goat {

class Generator {
 public:
  // `prompt`: at least one token. Position tables and memory are for prompt.size() + new_tokens positions,
  // which may exceed the training length. With the cache, the prompt takes one pass and every later token a
  // pass of its own; without, every token recomputes the whole sequence.
  Generator(const Config& config, const ParameterSet& parameters, Device& device,
            std::vector<std::int32_t> prompt, std::int64_t new_tokens, bool use_cache);

  // Logits [V] of the token after all there are. Valid until the next call.
  std::span<const float> next_logits();
  void append(std::int32_t token) { tokens_.push_back(token); }
  // Back to the prompt, for another continuation of it. The prompt is not computed again.
  void restart();

  const std::vector<std::int32_t>& tokens() const { return tokens_; }  // prompt included
  std::size_t memory_bytes() const { return memory_.total_bytes(); }

 private:
  Tensor run_new_tokens();
  Tensor run_all_tokens();

  Device& device_;
  std::vector<std::int32_t> tokens_;
  std::size_t prompt_length_, capacity_;
  MemoryPlan memory_;
  std::unique_ptr<KvCache> cache_;             // with the cache:
  std::unique_ptr<Model> prompt_, token_;      //   the pass over the prompt, and over one token
  std::unique_ptr<Model> all_;                 // without: over `capacity_` tokens
  std::vector<float> logits_, prompt_logits_;  // the latter empty until they are known
  bool restarted_ = false;                     // and nothing has followed the prompt since
};

}  // namespace goat
