// Generation with and without the KV cache, against each other and against the losses of a whole-sequence
// pass.

#include "train/model/generator.h"

#include <cmath>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/model_oracle.h"
#include "test/model_variants.h"
#include "test/operand.h"
#include "train/commands/token_sampler.h"
#include "train/model/model_parameters.h"

using namespace goat;
using goat::test::Rng;

namespace {

// Trained on 12 tokens, sampled far beyond; every parameter random, so that the prior's every part matters at
// every position.
Config byte_config(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"model.layers=2",    "model.heads=3",
                                  "model.width=48",    "model.ff_width=72",
                                  "model.vocab=256",   "data.seq_len=12",
                                  "prior.pos_rank=2",  "prior.abs_rank=3",
                                  "prior.init=random", "prior.recency=free",
                                  "train.batch=2",     "train.steps=2",
                                  "train.warmup=1",    "prior.sink_init_scale=0.5"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("copy_mixture", all);
}

// The same for a variant; one that takes no longer sequences than in training is trained on longer ones.
Config long_config(const goat::test::ModelVariant& variant) {
  std::vector<std::string> settings = variant.settings;
  if (!variant.any_length) settings.push_back("data.seq_len=80");
  return byte_config(settings);
}

struct RandomWeights {
  RandomWeights(const Config& config, Device& device, std::uint64_t seed) {
    declare_parameters(config, parameters);
    parameters.plan(memory, false);
    memory.allocate(device);
    parameters.bind();
    goat::test::randomize(device, parameters, seed);
  }
  ParameterSet parameters;
  MemoryPlan memory;
};

std::vector<std::int32_t> random_tokens(Rng& rng, std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t n = 0; n < count; ++n)
    tokens.push_back(static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(vocab)));
  return tokens;
}

std::vector<double> as_double(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace

TEST_CASE(
    "generator: logits with the cache match those without, prompt and every token, beyond the training "
    "length, in every variant") {
  for (const std::string& device_name : goat::test::device_names()) {
    const auto device = open_device(device_name);
    for (const goat::test::ModelVariant& variant : goat::test::model_variants()) {
      const std::uint64_t seed = goat::test::fresh_seed();
      Rng rng(seed);
      const Config config = long_config(variant);
      const RandomWeights weights(config, *device, seed);
      const std::int64_t new_tokens = 40, prompt_length = 1 + static_cast<std::int64_t>(rng() % 30);
      INFO("device " << device_name << ", " << variant.name << ", seed " << seed << ", prompt of "
                     << prompt_length);
      const std::vector<std::int32_t> prompt = random_tokens(rng, prompt_length, config.model.vocab);
      Generator cached(config, weights.parameters, *device, prompt, new_tokens, true),
          whole(config, weights.parameters, *device, prompt, new_tokens, false);
      for (const std::int32_t token : random_tokens(rng, new_tokens, config.model.vocab)) {
        INFO("after " << cached.tokens().size() << " tokens");
        const std::vector<double> with_cache = as_double(cached.next_logits());
        CHECK_FP32(with_cache, as_double(whole.next_logits()));
        cached.append(token);
        whole.append(token);
      }
    }
  }
}

// The two round differently, so that one draw in thousands, on the border of two tokens, may differ by right.
TEST_CASE(
    "generator: the same draws with and without the cache, greedy and sampled, but for ties of rounding") {
  for (const std::string& device_name : goat::test::device_names()) {
    const auto device = open_device(device_name);
    const Config config = byte_config();
    const RandomWeights weights(config, *device, 3);
    const std::vector<SamplingRule> rules = {
        {.temperature = 0}, {}, {.temperature = 0.7, .top_k = 20}, {.top_p = 0.9}};
    std::vector<std::vector<std::int32_t>> generations;
    std::int64_t draws = 0, same = 0;
    for (const SamplingRule& rule : rules)
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        INFO("device " << device_name << ", temperature " << rule.temperature << ", top-k " << rule.top_k
                       << ", top-p " << rule.top_p << ", seed " << seed);
        Generator cached(config, weights.parameters, *device, {72, 105}, 60, true),
            whole(config, weights.parameters, *device, {72, 105}, 60, false);
        TokenSampler sampler(rule, seed);
        for (std::uint64_t n = 0; n < 60; ++n) {
          const std::int32_t token = sampler.sample(cached.next_logits(), n);
          same += token == sampler.sample(whole.next_logits(), n);
          ++draws;
          cached.append(token);
          whole.append(token);
        }
        generations.push_back(cached.tokens());
      }
    CHECK(draws - same <= 1);
    CHECK(generations[0] == generations[1]);  // greedy: whatever the seed
    CHECK(generations[3] != generations[4]);
  }
}

TEST_CASE("generator: after a restart the logits are those of a new generator with the same prompt") {
  const auto device = open_device("cpu");
  const Config config = byte_config();
  const RandomWeights weights(config, *device, 5);
  for (const bool use_cache : {true, false}) {
    INFO("cache " << use_cache);
    const auto follow = [](Generator& generator, std::initializer_list<std::int32_t> tokens) {
      std::vector<double> all;
      for (const std::int32_t token : tokens) {
        const std::vector<double> logits = as_double(generator.next_logits());
        all.insert(all.end(), logits.begin(), logits.end());
        generator.append(token);
      }
      return all;
    };
    Generator fresh(config, weights.parameters, *device, {7, 8, 9}, 5, use_cache);
    Generator used(config, weights.parameters, *device, {7, 8, 9}, 5, use_cache);
    used.restart();  // before anything
    follow(used, {1, 2, 3, 4, 5});
    used.restart();
    follow(used, {6});
    used.restart();
    used.restart();
    CHECK(used.tokens() == std::vector<std::int32_t>{7, 8, 9});
    CHECK(follow(used, {10, 20, 30, 40}) == follow(fresh, {10, 20, 30, 40}));
    used.restart();
    used.next_logits();
    if (use_cache) CHECK_THROWS_AS(used.next_logits(), std::logic_error);
  }
}

TEST_CASE("generator: logits give the losses of a pass over the whole sequence, in every variant") {
  for (const std::string& device_name : goat::test::device_names()) {
    const auto device = open_device(device_name);
    for (const goat::test::ModelVariant& variant : goat::test::model_variants()) {
      const std::uint64_t seed = goat::test::fresh_seed();
      INFO("device " << device_name << ", " << variant.name << ", seed " << seed);
      Rng rng(seed);
      const Config config = long_config(variant);
      const RandomWeights weights(config, *device, seed);
      const std::int64_t length = 33;
      const std::vector<std::int32_t> tokens = random_tokens(rng, length + 1, config.model.vocab);

      MemoryPlan memory;
      Model model(config, device->info(), {1, length}, false, weights.parameters, memory);
      memory.allocate(*device);
      model.bind(*device);
      model.load(*device, {tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()});
      model.forward(*device);

      // As long as the pass, because rope_pi scales positions by that.
      Generator generator(config, weights.parameters, *device, {tokens[0]}, length - 1, true);
      std::vector<double> losses, terms;
      for (std::size_t n = 1; n < tokens.size(); ++n) {
        const std::vector<double> logits = as_double(generator.next_logits());
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit);
        losses.push_back(std::log(sum) - logits[static_cast<std::size_t>(tokens[n])]);
        terms.push_back(std::abs(std::log(sum)) + std::abs(logits[static_cast<std::size_t>(tokens[n])]));
        generator.append(tokens[n]);
      }
      CHECK_FP32(goat::test::values_of(*device, model.losses()), losses, terms);
    }
  }
}

TEST_CASE("generator: more tokens than there is room for, no prompt, and a skipped token are refused") {
  const auto device = open_device("cpu");
  const Config config = byte_config();
  const RandomWeights weights(config, *device, 1);
  CHECK_THROWS_AS(Generator(config, weights.parameters, *device, {}, 5, true), std::invalid_argument);
  for (const bool use_cache : {true, false}) {
    Generator generator(config, weights.parameters, *device, {1, 2}, 1, use_cache);
    generator.next_logits();
    generator.append(3);
    generator.next_logits();
    generator.append(4);
    CHECK_THROWS_AS(generator.next_logits(), std::exception);
  }
  Generator generator(config, weights.parameters, *device, {1}, 9, true);
  generator.next_logits();
  CHECK_THROWS_AS(generator.next_logits(), std::logic_error);
  generator.append(1);
  generator.append(1);
  CHECK_THROWS_AS(generator.next_logits(), std::logic_error);
}
