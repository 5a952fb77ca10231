// Generator: a sequence that grows by one token at a time, and the model's logits for the next token.
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
  // `prompt` must hold at least one token. Position tables and memory cover prompt.size() + new_tokens
  // positions, which may exceed the training length. With the cache, the prompt takes one pass and every
  // later token takes one pass over that token alone. Without the cache, every token needs a pass over the
  // whole sequence. Throws std::runtime_error if the device lacks the memory.
  Generator(const Config& config, const ParameterSet& parameters, Device& device,
            std::vector<std::int32_t> prompt, std::int64_t new_tokens, bool use_cache);

  // Logits [V] of the next token. Valid until the next call. With the cache, one append() must stand between
  // two calls; throws std::logic_error otherwise.
  std::span<const float> next_logits();
  void append(std::int32_t token) { tokens_.push_back(token); }
  // Goes back to the prompt, to start another continuation. The prompt is not computed again.
  void restart();

  const std::vector<std::int32_t>& tokens() const { return tokens_; }  // includes the prompt
  std::size_t memory_bytes() const { return memory_.total_bytes(); }

 private:
  void plan_workspace();
  Tensor run_new_tokens();
  Tensor run_all_tokens();

  Device& device_;
  std::vector<std::int32_t> tokens_;
  std::size_t prompt_length_, capacity_;
  MemoryPlan memory_;
  std::unique_ptr<KvCache> cache_;             // only if use_cache
  std::unique_ptr<Model> prompt_, token_;      // with the cache: passes over the prompt, and over one token
  std::unique_ptr<Model> all_;                 // without the cache: passes over `capacity_` tokens
  Tensor workspace_;                           // temporary memory of operations
  std::vector<float> logits_, prompt_logits_;  // prompt_logits_ is empty until it is computed
  bool restarted_ = false;                     // true from restart() until the next pass
};

}  // namespace goat
