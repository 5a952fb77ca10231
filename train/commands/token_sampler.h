// TokenSampler: draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace goat {

struct SamplingRule {
  double temperature = 1;  // divides the logits; 0: always the most likely token
  std::int64_t top_k = 0;  // only the k most likely tokens; 0: all
  // Of the remaining tokens, only the smallest set of most likely ones whose probabilities add up to
  // top_p; 1: all.
  double top_p = 1;
};

// Throws ConfigError unless temperature is finite and >= 0, top_k >= 0 and 0 < top_p <= 1. The message
// names the option.
void validate(const SamplingRule& rule);

// Of two tokens with equal logits, the one with the lower id counts as more likely.
class TokenSampler {
 public:
  // Throws what validate(rule) throws.
  TokenSampler(const SamplingRule& rule, std::uint64_t seed);

  // Draws token number `index` of a generation from the ids 0 .. logits.size() - 1. The result depends only
  // on rule, seed, logits and index: the random number is philox(seed, RandomStream::sample, index). Throws
  // std::runtime_error if a logit is not finite.
  std::int32_t sample(std::span<const float> logits, std::uint64_t index);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
    double weight;  // probability up to a common factor
  };
  static bool more_likely(const Candidate& a, const Candidate& b);
  void keep_first(std::size_t count);
  void keep_most_likely(std::size_t count);
  void keep_mass(double share);

  SamplingRule rule_;
  std::uint64_t seed_;
  std::vector<Candidate> candidates_;  // a member, so that its memory is reused
};

}  // namespace goat
