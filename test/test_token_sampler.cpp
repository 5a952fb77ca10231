// The token sampler against exact probabilities.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "test/catch.h"
#include "test/operand.h"
#include "train/commands/token_sampler.h"
#include "train/config/config.h"

using namespace goat;
using goat::test::Rng;

namespace {

std::vector<std::int64_t> counts_of(const SamplingRule& rule, const std::vector<float>& logits,
                                    std::int64_t draws, std::uint64_t seed = 17) {
  TokenSampler sampler(rule, seed);
  std::vector<std::int64_t> counts(logits.size());
  for (std::int64_t n = 0; n < draws; ++n)
    ++counts[static_cast<std::size_t>(sampler.sample(logits, static_cast<std::uint64_t>(n)))];
  return counts;
}

// Pearson's chi-square of the counts, with no token of probability 0 drawn, within 5 standard deviations
// (sqrt(2 df)) of its mean df.
void check_distribution(const std::vector<std::int64_t>& counts, std::vector<double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto draws = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  double chi_square = 0, freedom = -1;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    INFO("token " << i);
    if (weights[i] == 0) {
      CHECK(counts[i] == 0);
      continue;
    }
    const double expected = draws * weights[i] / total;
    REQUIRE(expected > 5);
    chi_square +=
        (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
    freedom += 1;
  }
  INFO("chi-square " << chi_square << " with " << freedom << " degrees of freedom");
  CHECK(chi_square < freedom + 5 * std::sqrt(2 * freedom) + 1e-9);
}

std::vector<double> softmax_weights(const std::vector<float>& logits, double temperature) {
  std::vector<double> weights;
  for (const float logit : logits) weights.push_back(std::exp(static_cast<double>(logit) / temperature));
  return weights;
}

const std::vector<float> skewed = {0.5f, 2.0f, -1.0f, 1.0f, 0.0f, 1.5f, -0.5f, 0.25f};
constexpr std::int64_t draws = 100'000;
constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("sampler: tokens come with the softmax's probabilities at every temperature") {
  for (const double temperature : {0.5, 1.0, 1.7}) {
    INFO("temperature " << temperature);
    check_distribution(counts_of({.temperature = temperature}, skewed, draws),
                       softmax_weights(skewed, temperature));
  }
}

TEST_CASE("sampler: top-k draws from the k most likely tokens, renormalised") {
  std::vector<double> weights = softmax_weights(skewed, 1);
  for (const std::size_t dropped : {0u, 2u, 4u, 6u, 7u}) weights[dropped] = 0;
  check_distribution(counts_of({.top_k = 3}, skewed, draws), weights);
  check_distribution(counts_of({.top_k = 1000}, skewed, draws), softmax_weights(skewed, 1));
}

TEST_CASE(
    "sampler: top-p draws from the fewest tokens that hold the probability, the one that crosses it "
    "included") {
  const std::vector<double> probability = {0.05, 0.4, 0.15, 0.3, 0.1};
  std::vector<float> logits;
  for (const double p : probability) logits.push_back(static_cast<float>(std::log(p)));
  const auto kept = [&](double top_p, std::vector<double> weights) {
    INFO("top-p " << top_p);
    check_distribution(counts_of({.top_p = top_p}, logits, draws), std::move(weights));
  };
  kept(1e-300, {0, 1, 0, 0, 0});
  kept(0.39, {0, 1, 0, 0, 0});
  kept(0.41, {0, 0.4, 0, 0.3, 0});
  kept(0.69, {0, 0.4, 0, 0.3, 0});
  kept(0.71, {0, 0.4, 0.15, 0.3, 0});
  kept(0.99, probability);
}

TEST_CASE("sampler: top-p counts what top-k has left") {
  // of the two that top-k leaves, 0.4 and 0.3, the first has 4/7 of the probability
  std::vector<float> logits;
  for (const double p : {0.4, 0.3, 0.2, 0.1}) logits.push_back(static_cast<float>(std::log(p)));
  check_distribution(counts_of({.top_k = 2, .top_p = 0.55}, logits, 1000), {1, 0, 0, 0});
  check_distribution(counts_of({.top_k = 2, .top_p = 0.6}, logits, draws), {0.4, 0.3, 0, 0});
}

TEST_CASE(
    "sampler: temperature 0, top-k 1 and a tiny top-p give the most likely token, of equal ones the lowest "
    "id") {
  const std::uint64_t seed = goat::test::fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<float> logits(50);
    for (float& logit : logits) logit = static_cast<float>(rng() % 8);  // many ties
    const auto best =
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    for (const SamplingRule& rule :
         {SamplingRule{.temperature = 0}, SamplingRule{.top_k = 1}, SamplingRule{.top_p = 1e-9},
          SamplingRule{.temperature = 1e-300, .top_k = 1}})
      CHECK(TokenSampler(rule, seed).sample(logits, static_cast<std::uint64_t>(repeat)) == best);
  }
}

TEST_CASE("sampler: among equal logits, top-k and top-p keep the lowest ids") {
  const std::vector<float> equal(10, -3.0f);
  std::vector<double> first_four(10, 0.0);
  std::fill_n(first_four.begin(), 4, 1.0);
  check_distribution(counts_of({.top_k = 4}, equal, draws), first_four);
  check_distribution(counts_of({.top_p = 0.35}, equal, draws), first_four);
}

// Tokens of weight 0 change no sum, so that the draws must be the same to the bit.
TEST_CASE("sampler: among thousands of tokens, top-k and top-p draw as if the others were impossible") {
  const std::uint64_t seed = goat::test::fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  std::normal_distribution<float> normal;
  for (const double width : {0.01, 1.0, 4.0}) {  // from nearly all tokens to a few
    std::vector<float> logits(3000);
    for (float& logit : logits) logit = static_cast<float>(width) * normal(rng);
    const std::vector<double> weights = softmax_weights(logits, 1);
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    for (const SamplingRule& rule : {SamplingRule{.top_k = 700}, SamplingRule{.top_p = 0.9}}) {
      const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
      std::vector<float> possible(logits.size(), -1e30f);
      double held = 0;
      for (std::size_t n = 0; n < order.size(); ++n) {
        if (rule.top_k > 0 ? static_cast<std::int64_t>(n) == rule.top_k : held >= rule.top_p * all) break;
        possible[order[n]] = logits[order[n]];
        held += weights[order[n]];
      }
      INFO("width " << width << ", top-k " << rule.top_k << ", top-p " << rule.top_p);
      TokenSampler limited(rule, seed), free({}, seed);
      int different = 0;
      for (std::uint64_t n = 0; n < 500; ++n)
        different += limited.sample(logits, n) != free.sample(possible, n);
      CHECK(different == 0);
    }
  }
}

TEST_CASE("sampler: rounding that swaps two nearly equal logits changes no draw") {
  const std::vector<float> logits = {2.0f, 2.0f, -8, -8, -8}, rounded = {2.0f, 2.0000005f, -8, -8, -8};
  for (const SamplingRule& rule : {SamplingRule{}, SamplingRule{.top_k = 2}, SamplingRule{.top_p = 0.9}}) {
    TokenSampler sampler(rule, 3), other(rule, 3);
    int different = 0;
    for (std::uint64_t n = 0; n < 2000; ++n)
      different += sampler.sample(logits, n) != other.sample(rounded, n);
    CHECK(different <= 1);
  }
}

TEST_CASE("sampler: extreme logits and temperatures neither overflow nor lose the likely tokens") {
  constexpr float largest = std::numeric_limits<float>::max();
  check_distribution(counts_of({}, {-largest, largest, 0, largest}, draws), {0, 1, 0, 1});
  check_distribution(counts_of({}, {-largest, -largest}, draws), {1, 1});
  check_distribution(counts_of({}, {1e30f, 1e30f, -1e30f}, draws), {1, 1, 0});
  check_distribution(counts_of({.temperature = 1e300}, {-largest, largest, 0}, draws), {1, 1, 1});
  check_distribution(counts_of({.temperature = 5e-324}, {1.0f, 1.0000001f, -5}, 1000), {0, 1, 0});
  check_distribution(counts_of({.top_p = 0.9}, {-largest, largest, 0, largest}, draws), {0, 1, 0, 1});
  check_distribution(counts_of({.top_k = 3, .top_p = 0.999}, {-200, 0, -200, -200}, 1000), {0, 1, 0, 0});
}

TEST_CASE("sampler: a draw depends on seed and index alone, and differs between them") {
  const std::vector<float> logits(1000, 0.0f);
  TokenSampler forwards({}, 5), backwards({}, 5), other({}, 6);
  std::vector<std::int32_t> first, second, third;
  for (std::uint64_t n = 0; n < 50; ++n) first.push_back(forwards.sample(logits, n));
  for (std::uint64_t n = 50; n-- > 0;) second.insert(second.begin(), backwards.sample(logits, n));
  for (std::uint64_t n = 0; n < 50; ++n) third.push_back(other.sample(logits, n));
  CHECK(first == second);
  CHECK(first != third);
  CHECK(std::ranges::count(first, first[0]) < 5);
}

TEST_CASE("sampler: logits that are not finite are an error that names the token") {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), static_cast<float>(infinity),
                          -static_cast<float>(infinity)}) {
    std::vector<float> logits(5, 1.0f);
    logits[3] = bad;
    for (const double temperature : {0.0, 1.0}) {
      TokenSampler sampler({.temperature = temperature}, 1);
      CHECK_THROWS_WITH(sampler.sample(logits, 0), ContainsSubstring("token 3"));
    }
  }
}

TEST_CASE("sampler: options out of range are refused and named") {
  const auto refused = [](const SamplingRule& rule, const char* option) {
    CHECK_THROWS_WITH(TokenSampler(rule, 1), ContainsSubstring(option));
  };
  for (const double value : {-0.1, infinity, std::nan("")}) refused({.temperature = value}, "--temperature");
  for (const double value : {0.0, -1.0, 1.01, std::nan("")}) refused({.top_p = value}, "--top-p");
  refused({.top_k = -1}, "--top-k");
  CHECK_THROWS_AS(TokenSampler({.top_p = 0}, 1), ConfigError);
}
