// The positional parts: what each does to the logits or the stream, worked out by hand, and which of them are
// the same where they should be.

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/tiny_model.h"
#include "train/model/generator.h"
#include "train/positions/positional_part.h"

using namespace goat;
using namespace goat::test::tiny_model;
using goat::test::Rng;

namespace {

using Values = std::vector<double>;

// The only part of `attention` on a device, ready for passes of the shape.
struct TestPart {
  TestPart(const Config& config, Device& target, BatchShape shape) : device(target) {
    declare_parameters(config, parameters);
    parameters.plan(memory, true);
    part = positional_kinds(config).at(0).make(config, parameters);
    layer = part->layer(parameters, "blocks.0.attn.");
    const PassPlan plan{.config = config,
                        .device = device.info(),
                        .shape = shape,
                        .training = true,
                        .dtype = DType::f32,
                        .memory = memory};
    part->plan(plan);
    layer->plan("blocks.0.attn.", plan);
    memory.allocate(device);
    parameters.bind();
    parameters.initialize(device, 1);
    part->fill_tables(device);
  }

  // [rows, C]: what the part adds to a stream of zeros.
  Values added(std::int64_t rows, std::int64_t width, std::int64_t first_position = 0) {
    const auto stream = goat::test::Operand::zeros(device, {rows, width}, "stream");
    part->add_to_stream(device, stream, first_position);
    return stream.values();
  }

  // q [1, T, H, d_h] after the layer; k is the same.
  Values turned(const Values& q, const std::array<std::int64_t, 4>& shape) {
    const auto [b, t, h, d] = shape;
    const auto query = goat::test::Operand::of(device, q, {b, t, h, d}, "q"),
               key = goat::test::Operand::of(device, q, {b, t, h, d}, "k");
    layer->forward(device, {.q = query, .k = key, .scale = 1});
    CHECK(key.values() == query.values());
    return query.values();
  }

  Device& device;
  ParameterSet parameters;
  MemoryPlan memory;
  std::unique_ptr<PositionalPart> part;
  std::unique_ptr<PositionalLayer> layer;
};

Config config_of(const std::string& attention, const Settings& settings = {}) {
  return tiny_config(with({"model.attention=" + attention}, settings));
}

// The loss of each token of a model whose parameters have their initial values.
Values initial_losses(const Config& config, Device& device, std::int64_t length,
                      const std::function<void(const ParameterSet&)>& change = {}) {
  ParameterSet parameters;
  MemoryPlan memory;
  declare_parameters(config, parameters);
  parameters.plan(memory, false);
  Model model(config, device.info(), {1, length}, false, parameters, memory);
  memory.allocate(device);
  parameters.bind();
  parameters.initialize(device, 3);
  if (change) change(parameters);
  model.bind(device);
  Rng rng(5);
  std::vector<std::int32_t> tokens;
  for (std::int64_t t = 0; t <= length; ++t) tokens.push_back(static_cast<std::int32_t>(rng() % 11));
  model.load(device, {tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()});
  model.forward(device);
  return goat::test::values_of(device, model.losses());
}

Values random_values(Rng& rng, std::int64_t count) {
  std::normal_distribution<float> normal;
  Values values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(normal(rng)));
  return values;
}

}  // namespace

TEST_CASE("alibi: without content, attention fades by its slopes: 1/16 and 1/256 a token for two heads") {
  constexpr std::int64_t length = 5, heads = 2;
  for (const std::string& name : goat::test::device_names())
    for (const char* attention : {"alibi", "alibi_learned"}) {
      INFO(name << ", " << attention);
      const auto device = open_device(name);
      TestPart test(config_of(attention), *device, {1, length});
      const auto zeros = goat::test::Operand::zeros(*device, {1, length, heads, length}, "q");
      Values identity(length * heads * length);
      for (std::size_t j = 0; j < length; ++j)
        for (std::size_t h = 0; h < heads; ++h) identity[(j * heads + h) * length + j] = 1;
      const auto v = goat::test::Operand::of(*device, identity, {1, length, heads, length}, "v");
      const goat::test::Operand out(*device, DType::f32, {1, length, heads, length}, "out"),
          lse(*device, DType::f32, {1, heads, length}, "lse");
      test.layer->forward(*device, {.q = zeros, .k = zeros, .scale = 1});
      device->run(AttentionForward{.out = out,
                                   .lse = lse,
                                   .q = zeros,
                                   .k = zeros,
                                   .v = v,
                                   .slope = test.layer->slope(),
                                   .key_bias = {},
                                   .scale = 1});
      const Values p = out.values();
      const double slopes[] = {1.0 / 16, 1.0 / 256};
      for (std::size_t i = 0; i < length; ++i)
        for (std::size_t h = 0; h < heads; ++h)
          for (std::size_t j = 1; j <= i; ++j)
            CHECK(p[(i * heads + h) * length + j] / p[(i * heads + h) * length + j - 1] ==
                  Approx(std::exp(slopes[h])).epsilon(1e-5));
    }
}

TEST_CASE("alibi: three heads have the slopes of two, and then the first of four") {
  const auto device = open_device("cpu");
  TestPart test(config_of("alibi", {"model.heads=3"}), *device, {1, 4});
  CHECK(goat::test::values_of(*device, test.layer->slope()) == Values{1.0 / 16, 1.0 / 256, 1.0 / 4});
}

TEST_CASE("alibi_learned: starts as alibi, and softplus keeps its slopes positive") {
  const auto device = open_device("cpu");
  const Values fixed = initial_losses(config_of("alibi"), *device, 9),
               trained = initial_losses(config_of("alibi_learned"), *device, 9);
  for (std::size_t t = 0; t < fixed.size(); ++t) CHECK(trained[t] == Approx(fixed[t]).epsilon(1e-6));

  TestPart test(config_of("alibi_learned"), *device, {1, 4});
  const Tensor rho = test.parameters.at("blocks.0.attn.prior.slope").value;
  rho.as<float>()[0] = -3;
  rho.as<float>()[1] = 0;
  test.layer->forward(*device, {});
  const Values slopes = goat::test::values_of(*device, test.layer->slope());
  CHECK(slopes[0] == Approx(0.04858735157));
  CHECK(slopes[1] == Approx(0.69314718056));
}

TEST_CASE(
    "rope_pi: is rope, bit for bit, up to the training length, and no position is beyond it after that") {
  for (const std::string& name : goat::test::device_names()) {
    INFO(name);
    const auto device = open_device(name);
    const Config rope = config_of("rope"), interpolated = config_of("rope_pi");
    const std::int64_t trained = rope.data.seq_len, heads = 2, head_dim = 12;
    for (const std::int64_t length : {trained - 4, trained})
      CHECK(initial_losses(interpolated, *device, length) == initial_losses(rope, *device, length));
    CHECK(initial_losses(interpolated, *device, trained + 1) != initial_losses(rope, *device, trained + 1));

    // Of 2 L - 1 positions each second one is one of training.
    const std::int64_t length = 2 * trained - 1, row = heads * head_dim;
    Rng rng(2);
    const Values vector = random_values(rng, row);
    Values q;
    for (std::int64_t t = 0; t < length; ++t) q.insert(q.end(), vector.begin(), vector.end());
    TestPart near(rope, *device, {1, trained}), far(interpolated, *device, {1, length});
    const Values short_q = near.turned({q.begin(), q.begin() + trained * row}, {1, trained, heads, head_dim}),
                 long_q = far.turned(q, {1, length, heads, head_dim});
    for (std::int64_t t = 0; t < trained; ++t)
      for (std::int64_t i = 0; i < row; ++i)
        CHECK(long_q[static_cast<std::size_t>(2 * t * row + i)] ==
              Approx(short_q[static_cast<std::size_t>(t * row + i)]).margin(1e-6));
  }
}

TEST_CASE("rope_pi: with a KV cache all positions are scaled for the whole generation, prompt included") {
  const auto device = open_device("cpu");
  const Config config = config_of("rope_pi");
  goat::test::tiny_model::TestParameters allocated(config, *device);
  ParameterSet& parameters = allocated.parameters;
  goat::test::randomize(*device, parameters, 4);
  const std::vector<std::int32_t> prompt = {1, 2, 3, 4};
  const auto logits = [&](std::int64_t new_tokens) {
    Generator generator(config, parameters, *device, prompt, new_tokens, true);
    const std::span<const float> next = generator.next_logits();
    return std::vector<float>(next.begin(), next.end());
  };
  CHECK(logits(5) == logits(2));   // both within the 9 positions of training
  CHECK(logits(20) != logits(5));  // the same prompt in a longer text
}

TEST_CASE("rope_fraction: the first coordinates turn, rounded to pairs, and the others stay bit for bit") {
  const std::int64_t length = 5, heads = 2, head_dim = 12;
  for (const auto& [fraction, turned] : {std::pair{0.5, 6}, {0.4, 4}, {0.21, 2}, {1.0, 12}}) {
    const auto device = open_device("cpu");
    const Config config = config_of("rope", {"model.rope_fraction=" + std::to_string(fraction)});
    TestPart test(config, *device, {1, length});
    Rng rng(2);
    const Values q = random_values(rng, length * heads * head_dim),
                 after = test.turned(q, {1, length, heads, head_dim});
    INFO("fraction " << fraction);
    CHECK(config.rope_dim() == turned);
    for (std::size_t i = 0; i < q.size(); ++i) {
      const auto t = static_cast<std::int64_t>(i) / (heads * head_dim),
                 c = static_cast<std::int64_t>(i) % head_dim;
      CHECK((after[i] != q[i]) == (t > 0 && c < turned));
    }
  }
}

TEST_CASE("goat+rope: rope turns the content coordinates of a head, and the prior keeps its lanes") {
  const Config config = config_of("rope+goat");  // d_h = 12, of which 2R + 2 = 6 are lanes
  CHECK(config.model.attention == "goat+rope");
  CHECK(config.content_dim() == 6);
  CHECK(config.rope_dim() == 6);
  const auto kinds = positional_kinds(config);
  REQUIRE(kinds.size() == 2);
  CHECK(std::string(kinds[0].name) + kinds[1].name == "goatrope");
  // Without a prior, goat+rope is rope on heads of 6 dimensions for q and k, which the lanes must not
  // disturb.
  const auto device = open_device("cpu");
  const Settings flat = {"prior.init=zero", "prior.sink_init_scale=0"};
  const Values plain = initial_losses(config_of("goat", flat), *device, 9),
               both = initial_losses(config_of("goat+rope", flat), *device, 9);
  CHECK(both != plain);
  CHECK(both[0] == plain[0]);  // one key, at position 0
}

TEST_CASE("sinusoidal: adds the sinusoids of Vaswani et al. by sqrt(C), from the first position on") {
  for (const std::string& name : goat::test::device_names()) {
    INFO(name);
    const auto device = open_device(name);
    const Config config = config_of("sinusoidal", {"model.width=4", "model.ff_width=8"});
    TestPart test(config, *device, {1, 3, 103});
    for (const std::int64_t first : {0, 100}) {
      const Values got = test.added(3, 4, first);
      for (std::int64_t t = 0; t < 3; ++t) {
        const auto p = static_cast<double>(first + t);
        const double want[] = {std::sin(p), std::cos(p), std::sin(p / 100), std::cos(p / 100)};
        for (std::int64_t c = 0; c < 4; ++c)
          CHECK(got[static_cast<std::size_t>(4 * t + c)] == Approx(want[c] / 2).margin(1e-7));
      }
    }
  }
}

TEST_CASE("learned: positions of zeros are none, bit for bit, and other ones are not") {
  for (const std::string& name : goat::test::device_names()) {
    INFO(name);
    const auto device = open_device(name);
    const Values none = initial_losses(config_of("none"), *device, 9);
    const auto zero = [&](const ParameterSet& parameters) {
      const Tensor& table = parameters.at("position_embedding.weight").value;
      device->set_zero(table.data, table.bytes());
    };
    CHECK(initial_losses(config_of("learned"), *device, 9, zero) == none);
    CHECK(initial_losses(config_of("learned"), *device, 9) != none);
  }
}

TEST_CASE("learned: has a row for each position of training, f32 and without weight decay") {
  const Config config = config_of("learned");
  ParameterSet parameters(DType::bf16);
  declare_parameters(config, parameters);
  const Parameter& table = parameters.at("position_embedding.weight");
  CHECK(table.value.dtype == DType::f32);
  CHECK(table.value.shape_text() == "[9, 24]");
  for (const ParameterSet::Group& group : parameters.groups())
    if (group.dtype == DType::f32) CHECK_FALSE(group.decay);
  CHECK(count_parameters(config).trainable == count_parameters(config_of("none")).trainable + 9 * 24);
}

TEST_CASE("learned: a pass or a generation beyond the training length is refused") {
  const auto device = open_device("cpu");
  const Config config = config_of("learned");
  CHECK(initial_losses(config, *device, 9).size() == 9);
  CHECK_THROWS_AS(initial_losses(config, *device, 10), ConfigError);
  goat::test::tiny_model::TestParameters allocated(config, *device);
  ParameterSet& parameters = allocated.parameters;
  for (const bool use_cache : {true, false}) {
    CHECK_NOTHROW(Generator(config, parameters, *device, {1, 2, 3}, 6, use_cache));
    CHECK_THROWS_AS(Generator(config, parameters, *device, {1, 2, 3}, 7, use_cache), ConfigError);
  }
}

namespace {
// Sets the gates' parameters of every layer.
void set_gates(const ParameterSet& parameters, Device& device, float weight, const std::vector<float>& bias) {
  for (const StoredTensor& tensor : parameters.stored()) {
    const auto elements = static_cast<std::size_t>(tensor.layout.elements());
    if (tensor.name.ends_with(".forget.weight"))
      parameters.write(device, tensor, std::vector<float>(elements, weight));
    if (tensor.name.ends_with(".forget.bias")) parameters.write(device, tensor, bias);
  }
}
}  // namespace

TEST_CASE("forget: the key bias grows by -log sigmoid of each token's gate, with a KV cache as without") {
  constexpr std::int64_t length = 5, width = 24;
  for (const std::string& name : goat::test::device_names()) {
    INFO(name);
    const auto device = open_device(name);
    TestPart test(config_of("forget"), *device, {1, length}),
        cached(config_of("forget"), *device, {1, 1, length});
    for (const TestPart* part : {&test, &cached}) set_gates(part->parameters, *device, 0.5f, {0.25f, -1.0f});
    Rng rng(3);
    const Values x = random_values(rng, length * width);
    const auto input = goat::test::Operand::of(*device, x, {length, width}, "x");
    test.layer->forward(*device, {.x = input});
    const Values got = goat::test::values_of(*device, test.layer->key_bias());
    Values want;
    for (const double bias : {0.25, -1.0}) {
      double sum = 0;
      for (std::int64_t t = 0; t < length; ++t) {
        double gate = bias;
        for (std::int64_t c = 0; c < width; ++c) gate += 0.5 * x[static_cast<std::size_t>(t * width + c)];
        want.push_back(sum += std::log1p(std::exp(-gate)));
      }
    }
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == Approx(want[i]).epsilon(1e-5));

    const goat::test::Operand all(*device, DType::f64, {1, 2, length}, "key_bias");
    for (std::int64_t t = 0; t < length; ++t) {
      const Values one(x.begin() + t * width, x.begin() + (t + 1) * width);
      const auto token = goat::test::Operand::of(*device, one, {1, width}, "x");
      cached.layer->forward(*device, {.x = token, .cached_key_bias = all, .first_position = t});
    }
    const Values by_token = all.values();
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(by_token[i] == Approx(got[i]).epsilon(1e-6));
  }
}

TEST_CASE("forget: gates that are the same for every token are slopes, alibi's where they are its") {
  for (const std::string& name : goat::test::device_names()) {
    INFO(name);
    const auto device = open_device(name);
    const auto losses = [&](const char* attention, const std::vector<float>& gates) {
      return initial_losses(config_of(attention), *device, 40, [&](const ParameterSet& parameters) {
        if (!gates.empty()) set_gates(parameters, *device, 0, gates);
      });
    };
    const auto gate = [](double m) { return static_cast<float>(-std::log(std::expm1(m))); };
    const std::vector<float> slopes = {gate(1.0 / 16), gate(1.0 / 256)};  // log sigmoid(gate) = -slope
    const Values alibi = losses("alibi", {}), none = losses("none", {}), as_alibi = losses("forget", slopes),
                 kept = losses("forget", {1e4f, 1e4f});
    for (std::size_t t = 0; t < alibi.size(); ++t) {
      CHECK(as_alibi[t] == Approx(alibi[t]).epsilon(1e-6));
      CHECK(kept[t] == Approx(none[t]).epsilon(1e-6));
    }
    CHECK(losses("forget", {}) != none);
    CHECK(losses("alibi+forget", slopes) != as_alibi);
  }
}

TEST_CASE("forget: gates begin near remembering; their weights are f32 and decayed, their biases are not") {
  const Config config = config_of("goat+forget", {"model.width=96", "model.ff_width=8"});
  const auto device = open_device("cpu");
  ParameterSet parameters(DType::bf16);
  MemoryPlan memory;
  declare_parameters(config, parameters);
  parameters.plan(memory, false);
  memory.allocate(*device);
  parameters.bind();
  parameters.initialize(*device, 1);
  const Parameter &weight = parameters.at("blocks.1.attn.forget.weight"),
                  &bias = parameters.at("blocks.1.attn.forget.bias");
  for (const Parameter* gate : {&weight, &bias}) CHECK(gate->value.dtype == DType::f32);
  CHECK(weight.value.shape_text() == "[2, 96]");
  CHECK(goat::test::values_of(*device, bias.value) == Values{2, 2});
  double squares = 0;
  for (const double value : goat::test::values_of(*device, weight.value)) squares += value * value;
  CHECK(std::sqrt(squares / (2 * 96)) == Approx(0.02).epsilon(0.2));
  std::int64_t decayed = 0;  // in f32: the weights of the two layers, each padded to a multiple of 64
  for (const ParameterSet::Group& group : parameters.groups())
    if (group.dtype == DType::f32 && group.decay) decayed = group.elements;
  CHECK(decayed == 2 * 2 * 96);
}

TEST_CASE("forget: where blocks are recomputed, the layers share the memory of their gates") {
  const auto bytes = [](const char* attention, const char* recompute) {
    const Config config = config_of(attention, {std::string("model.recompute=") + recompute});
    ParameterSet parameters;
    declare_parameters(config, parameters);
    MemoryPlan memory;
    const Model model(config, open_device("cpu")->info(), {2, 9}, true, parameters, memory);
    return memory.bytes(MemoryCategory::activations);
  };
  const std::size_t of_two_layers = bytes("goat+forget", "none") - bytes("goat", "none"),
                    shared = bytes("goat+forget", "block") - bytes("goat", "block");
  CHECK(shared >= 2 * 9 * 2 * (4 + 8));
  CHECK(of_two_layers == 2 * shared);
}
