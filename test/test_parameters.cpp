// Counts of parameters, and initial weights: every stored tensor has a random stream of its own.

#include "train/memory/parameters.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/bf16_bits.h"
#include "kernels/open/open_device.h"
#include "kernels/philox.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/tiny_model.h"
#include "train/model/model_parameters.h"

using namespace goat;

namespace {

std::map<std::string, std::vector<float>> initial_values(std::uint64_t seed,
                                                         const std::string& width = "32") {
  const Config config = load_config(
      "copy_mixture", {"model.layers=2", "model.width=" + width, "model.heads=2", "prior.init=random",
                       "prior.pos_rank=2", "prior.abs_rank=3", "prior.sink_init_scale=0.5"});
  const auto device = open_device("cpu");
  goat::test::tiny_model::TestParameters allocated(config, *device);
  ParameterSet& parameters = allocated.parameters;
  parameters.initialize(*device, seed);
  std::map<std::string, std::vector<float>> values;
  for (const StoredTensor& tensor : parameters.stored())
    values[tensor.name] = parameters.read(*device, tensor);
  return values;
}

bool is_drawn(const std::vector<float>& values) {
  return std::ranges::any_of(values, [&](float value) { return value != values[0]; });
}

double correlation(const std::vector<float>& a, const std::vector<float>& b) {
  const std::size_t count = std::min(a.size(), b.size());
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < count; ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace

TEST_CASE("parameters: no two tensors are drawn from one random stream, q, k and v of a layer included") {
  const auto values = initial_values(1);
  for (const char* name : {"q", "k", "v", "o"})
    CHECK(is_drawn(values.at("blocks.0.attn." + std::string(name) + ".weight")));
  for (auto a = values.begin(); a != values.end(); ++a)
    for (auto b = std::next(a); b != values.end(); ++b) {
      if (!is_drawn(a->second) || !is_drawn(b->second)) continue;
      INFO(a->first << " and " << b->first);
      const double left = static_cast<double>(a->second[0]) * static_cast<double>(b->second[1]);
      const double right = static_cast<double>(a->second[1]) * static_cast<double>(b->second[0]);
      CHECK(std::abs(left - right) > 1e-6 * std::abs(left));  // not the same normals, scaled
      const double shared = static_cast<double>(std::min(a->second.size(), b->second.size()));
      if (shared >= 64) CHECK(std::abs(correlation(a->second, b->second)) < 6 / std::sqrt(shared));
    }
}

TEST_CASE(
    "parameters: within a tensor no value of the stream is used twice, and the seed chooses the stream") {
  const auto values = initial_values(1), again = initial_values(1), other = initial_values(2);
  std::vector<float> sorted = values.at("embedding.weight");
  CHECK(again.at("embedding.weight") == sorted);
  CHECK(std::abs(correlation(other.at("embedding.weight"), sorted)) <
        6 / std::sqrt(static_cast<double>(sorted.size())));
  std::ranges::sort(sorted);
  const auto distinct = std::unique(sorted.begin(), sorted.end()) - sorted.begin();
  CHECK(static_cast<double>(distinct) > 0.99 * static_cast<double>(sorted.size()));
}

TEST_CASE("parameters: a head's rows are drawn in full where they begin inside a block of four normals") {
  const auto values = initial_values(1, "26");  // d_h = 13, of which d_c = 7: 7 x 26 = 182 values a head
  const std::vector<float>& q = values.at("blocks.0.attn.q.weight");
  CHECK(q.size() == 2 * 182);
  CHECK(std::ranges::count(q, 0.0f) == 0);
}

TEST_CASE("parameters: c4_125m's counts are the published ones") {
  const ParameterCounts counts = count_parameters(load_config("c4_125m", {}));
  CHECK(counts.trainable - counts.prior == 122'324'544);
  CHECK(counts.full_projections == 123'653'376);
}

TEST_CASE("parameters: fineweb_1b's counts are the published ones, an untied head adds its own weights") {
  const ParameterCounts counts = count_parameters(load_config("fineweb_1b", {}));
  CHECK(counts.trainable - counts.prior == 1'204'547'584);
  CHECK(counts.full_projections == 1'233'383'424);
  const std::int64_t head = 50257 * 2048;
  const ParameterCounts untied = count_parameters(load_config("fineweb_1b", {"model.tied=false"}));
  CHECK(untied.trainable == counts.trainable + head);
  CHECK(untied.prior == counts.prior);
  CHECK(untied.full_projections == counts.full_projections + head);
}

TEST_CASE("parameters: without a prior q and k have their full width, and both counts are one") {
  for (const char* attention : {"rope", "none"}) {
    INFO(attention);
    const ParameterCounts counts =
        count_parameters(load_config("fineweb_1b", {std::string("model.attention=") + attention}));
    CHECK(counts.prior == 0);
    CHECK(counts.trainable == 1'233'383'424);
    CHECK(counts.full_projections == 1'233'383'424);
  }
}

TEST_CASE("parameters: a llama model stores these tensors, and no bias") {
  const std::int64_t layers = 2, width = 24, ff_width = 40, vocab = 11;
  for (const bool tied : {true, false}) {
    const Config config = load_config(
        "copy_mixture",
        {"model.block=llama", "model.attention=rope", tied ? "model.tied=true" : "model.tied=false",
         "model.layers=2", "model.heads=2", "model.width=24", "model.ff_width=40", "model.vocab=11"});
    ParameterSet parameters;
    declare_parameters(config, parameters);
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const StoredTensor& tensor : parameters.stored()) shapes[tensor.name] = tensor.shape;
    std::map<std::string, std::vector<std::int64_t>> expected = {{"embedding.weight", {vocab, width}},
                                                                 {"final_norm.weight", {width}}};
    if (!tied) expected["head.weight"] = {vocab, width};
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::string prefix = "blocks." + std::to_string(layer) + ".";
      for (const char* norm : {"norm1", "norm2"}) expected[prefix + norm + ".weight"] = {width};
      for (const char* name : {"q", "k", "v", "o"})
        expected[prefix + "attn." + name + ".weight"] = {width, width};
      expected[prefix + "mlp.gate.weight"] = expected[prefix + "mlp.up.weight"] = {ff_width, width};
      expected[prefix + "mlp.down.weight"] = {width, ff_width};
    }
    CHECK(shapes == expected);
  }
}

TEST_CASE("parameters: a bf16 model has f32 masters, gradients and moments, and its vectors stay f32") {
  for (const bool training : {true, false}) {
    INFO((training ? "training" : "no training"));
    const auto device = open_device("cpu");  // which holds bf16 memory, though it computes in f32
    ParameterSet parameters(DType::bf16);
    MemoryPlan memory;
    const Parameter& matrix = parameters.declare("matrix", {3, 5}, ParameterRole::matrix, {.std = 1});
    const Parameter& bias = parameters.declare("bias", {7}, ParameterRole::bias, {.std = 1});
    const Parameter& vector = parameters.declare("vector", {9}, ParameterRole::vector, {.std = 1});
    parameters.plan(memory, training);
    memory.allocate(*device);
    parameters.bind();
    parameters.initialize(*device, 5);

    CHECK(parameters.groups().size() == 3);
    for (const Parameter* rounded : {&matrix, &bias}) CHECK(rounded->value.dtype == DType::bf16);
    CHECK(vector.value.dtype == DType::f32);
    for (const auto& group : parameters.groups())
      CHECK(static_cast<bool>(group.master) == (training && group.dtype == DType::bf16));
    for (const auto& group : parameters.groups())
      for (const Tensor& state : {group.master, group.grad, group.m, group.v})
        if (state) CHECK(state.dtype == DType::f32);

    for (const StoredTensor& tensor : parameters.stored()) {
      INFO(tensor.name);
      std::vector<float> values(static_cast<std::size_t>(tensor.layout.elements()));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 3);
      values[0] = 1 + 0x1p-8f;  // halfway between two bf16 numbers: the even one is 1
      parameters.write(*device, tensor, values);
      const bool exact = tensor.parameter == &vector;
      const std::vector<double> written(values.begin(), values.end()),
          rounded = goat::test::rounded_to(DType::bf16, written);
      CHECK(goat::test::values_of(*device, tensor.parameter->value) == (exact ? written : rounded));
      const std::vector<float> read = parameters.read(*device, tensor);
      CHECK(std::vector<double>(read.begin(), read.end()) == (exact || training ? written : rounded));
    }
  }
}

TEST_CASE("parameters: the prior and forget's gates learn at their own multiples of the rate") {
  const auto device = open_device("cpu");
  struct Scales {
    double prior, forget;
    std::size_t groups;  // matrices, the rest, the prior, the gates' matrices and biases
  };
  for (const auto& [prior, forget, groups_wanted] : {Scales{1, 1, 2}, {4, 1, 3}, {1, 0.5, 4}, {4, 0.5, 5}}) {
    INFO("prior.lr_scale = " << prior << ", prior.forget_lr_scale = " << forget);
    const auto config = goat::test::tiny_model::tiny_config(
        {"model.attention=goat+forget", "prior.lr_scale=" + std::to_string(prior),
         "prior.forget_lr_scale=" + std::to_string(forget)});
    goat::test::tiny_model::TestParameters allocated(config, *device);
    const auto& groups = allocated.parameters.groups();
    CHECK(groups.size() == groups_wanted);
    for (const StoredTensor& tensor : allocated.parameters.stored()) {
      INFO(tensor.name);
      const auto* place = tensor.parameter->value.as<float>();
      const auto group = std::ranges::find_if(groups, [&](const ParameterSet::Group& each) {
        return place >= each.value.as<float>() && place < each.value.as<float>() + each.elements;
      });
      REQUIRE(group != groups.end());
      const auto within = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
      const double scale = within(".prior.") ? prior : within(".forget.") ? forget : 1;
      CHECK(group->lr_scale == static_cast<float>(scale));
    }
  }
}

TEST_CASE(
    "parameters: masters are rounded as AdamW rounds them at that update; before the first, not again") {
  const auto device = open_device("cpu");
  ParameterSet parameters(DType::bf16);
  MemoryPlan memory;
  parameters.declare("matrix", {300, 5}, ParameterRole::matrix, {.std = 1});
  parameters.declare("bias", {131}, ParameterRole::bias, {.std = 1});
  parameters.plan(memory, true);
  memory.allocate(*device);
  parameters.bind();
  constexpr std::uint64_t seed = 11;
  for (const Rounding rounding : {Rounding::nearest, Rounding::stochastic})
    for (const std::int64_t update : {0, 1, 7}) {
      INFO((rounding == Rounding::nearest ? "nearest" : "stochastic") << ", update " << update);
      parameters.initialize(*device, 5);
      parameters.round_masters(*device, rounding, seed, update);
      for (const auto& group : parameters.groups()) {
        const std::vector<double> masters = goat::test::values_of(*device, group.master);
        std::vector<double> want = goat::test::rounded_to(DType::bf16, masters);
        for (std::size_t i = 0; i < want.size(); ++i) {
          if (rounding == Rounding::nearest || update == 0) break;
          const auto place = group.first_element + static_cast<std::int64_t>(i);
          const auto bits = rounding_bits(seed, place / 4, update)[static_cast<std::size_t>(place % 4)];
          want[i] = bf16_value(bf16_bits(static_cast<float>(masters[i]), bits));
        }
        CHECK(goat::test::values_of(*device, group.value) == want);
      }
    }
}
