#include "train/commands/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/philox.h"
#include "train/config/config.h"

namespace goat {

namespace {
void require(bool holds, const char* option, const std::string& value, const char* allowed) {
  if (!holds) throw ConfigError(std::string(option) + " " + value + ": expected " + allowed);
}

constexpr std::size_t first_sorted = 256;  // of the most likely candidates

// Uniform in [0, 1) with 53 bits.
double uniform_number(std::uint64_t seed, std::uint64_t index) {
  const PhiloxBlock words = philox(seed, RandomStream::sample, index, 0);
  const std::uint64_t bits = std::uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::size_t most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!std::isfinite(logits[id]))
      throw std::runtime_error("the model's logit of token " + std::to_string(id) +
                               " is not finite: its weights are damaged");
    if (logits[id] > logits[best]) best = id;
  }
  return best;
}
}  // namespace

void validate(const SamplingRule& rule) {
  require(rule.temperature >= 0 && std::isfinite(rule.temperature), "--temperature",
          std::to_string(rule.temperature), "a number of at least 0");
  require(rule.top_k >= 0, "--top-k", std::to_string(rule.top_k), "an integer of at least 0 (0: off)");
  require(rule.top_p > 0 && rule.top_p <= 1, "--top-p", std::to_string(rule.top_p),
          "a number above 0 and up to 1 (1: off)");
}

TokenSampler::TokenSampler(const SamplingRule& rule, std::uint64_t seed) : rule_(rule), seed_(seed) {
  validate(rule);
}

std::int32_t TokenSampler::sample(std::span<const float> logits, std::uint64_t index) {
  if (logits.empty()) throw std::invalid_argument("TokenSampler::sample: no logits");
  const std::size_t best = most_likely(logits);
  if (rule_.temperature == 0) return static_cast<std::int32_t>(best);

  candidates_.clear();
  for (std::size_t id = 0; id < logits.size(); ++id)
    candidates_.push_back({logits[id], static_cast<std::int32_t>(id), 0});
  if (rule_.top_k > 0) keep_most_likely(static_cast<std::size_t>(rule_.top_k));
  for (Candidate& candidate : candidates_) {
    const double below_best = static_cast<double>(candidate.logit) - static_cast<double>(logits[best]);
    candidate.weight = std::exp(below_best / rule_.temperature);
  }
  if (rule_.top_p < 1) keep_mass(rule_.top_p);

  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  // Below `total` even after rounding, so that the loop ends inside the list.
  const double drawn = uniform_number(seed_, index) * total;
  std::size_t chosen = 0;
  for (double sum = candidates_[0].weight; sum <= drawn && chosen + 1 < candidates_.size();)
    sum += candidates_[++chosen].weight;
  return candidates_[chosen].id;
}

// Rounding may swap two tokens with nearly equal logits. The order of the ids makes the draw independent of
// such swaps.
void TokenSampler::keep_first(std::size_t count) {
  candidates_.resize(count);
  std::ranges::sort(candidates_, {}, &Candidate::id);
}

bool TokenSampler::more_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Keeps only the `count` most likely candidates, in the order of their ids.
void TokenSampler::keep_most_likely(std::size_t count) {
  if (count >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count),
                   candidates_.end(), more_likely);
  keep_first(count);
}

// Keeps the smallest number of most likely candidates that hold `share` of the weight, in the order of their
// ids. They are few as a rule, so that only as many are sorted, and four times more as often as they do not
// suffice.
void TokenSampler::keep_mass(double share) {
  double total = 0, sum = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  std::size_t kept = 0;
  for (std::size_t sorted = 0; kept < candidates_.size() && sum < share * total; ++kept) {
    if (kept == sorted) {
      sorted = std::min(candidates_.size(), std::max(first_sorted, 4 * kept));
      const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(kept),
                 last = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
      if (last != candidates_.end()) std::nth_element(first, last, candidates_.end(), more_likely);
      std::sort(first, last, more_likely);
    }
    sum += candidates_[kept].weight;
  }
  keep_first(kept);
}

}  // namespace goat
