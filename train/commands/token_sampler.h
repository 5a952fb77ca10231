// TokenSampler: draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace goat {

struct SamplingRule {
  double temperature = 1;  // logits are divided by it; 0: the most likely token
  std::int64_t top_k = 0;  // only the k most likely tokens; 0: all
  double top_p =
      1;  // of these, only the fewest, most likely first, whose probabilities add up to top_p; 1: all
};

// Throws ConfigError unless temperature >= 0 is finite, top_k >= 0 and 0 < top_p <= 1; the message names the
// option.
void validate(const SamplingRule& rule);

// Tokens of equal logits count as ordered by id: the lower id is the more likely one.
class TokenSampler {
 public:
  // Validates the rule.
  TokenSampler(const SamplingRule& rule, std::uint64_t seed);

  // The token number `index` of a generation, of ids 0 .. logits.size() - 1. A pure function of rule, seed,
  // logits and index: the random number is philox(seed, RandomStream::sample, index). Throws
  // std::runtime_error if a logit is not finite.
  std::int32_t sample(std::span<const float> logits, std::uint64_t index);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
    double weight;  // probability times a constant
  };
  void keep_most_likely(std::size_t count);
  void keep_mass(double share);

  SamplingRule rule_;
  std::uint64_t seed_;
  std::vector<Candidate> candidates_;  // kept from call to call for its memory
};

}  // namespace goat
