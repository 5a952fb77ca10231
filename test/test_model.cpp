// The whole model: gradients against central differences in float64, micro-batches, reproducibility, initial
// values.

#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/cpu/cpu_device.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/model_oracle.h"
#include "test/model_variants.h"
#include "test/one_step.h"
#include "test/operand.h"
#include "test/tiny_model.h"
#include "train/model/evaluation.h"
#include "train/model/model.h"
#include "train/model/model_parameters.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::test::one_step;
using namespace goat::test::tiny_model;
using goat::test::Rng;

namespace {

std::vector<float> losses_of_run(const Config& config, Device& device, std::int64_t steps) {
  const auto training = open_training_source(config), validation = open_validation_source(config);
  Trainer trainer(config, device, *training, validation.get());
  trainer.allocate();
  trainer.initialize();
  std::vector<float> losses;
  for (std::int64_t step = 0; step < steps; ++step) losses.push_back(one_step(trainer).scalars.loss);
  losses.push_back(static_cast<float>(trainer.validate().value()));
  return losses;
}

// The length of the difference of two models' gradients, over all parameters.
double gradient_distance(TestModel& a, TestModel& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.parameters.stored().size(); ++i) {
    const std::vector<double> of_a = a.gradient(a.parameters.stored()[i]),
                              of_b = b.gradient(b.parameters.stored()[i]);
    for (std::size_t n = 0; n < of_a.size(); ++n) squares += (of_a[n] - of_b[n]) * (of_a[n] - of_b[n]);
  }
  return std::sqrt(squares);
}

// How far the model's gradient moves, root mean square of four trials, when each weight moves by up to half a
// unit in bf16's last place. Where a norm divides by a small row, this is a larger part of the gradient than
// elsewhere. `model` is one of this config, shape and seed.
double rounding_sensitivity(const Config& config, Device& device, BatchShape shape, std::uint64_t seed,
                            TestModel& model) {
  const int trials = 4;
  TestModel moved(config, device, shape, seed);
  Rng rng(seed + 3);
  std::uniform_real_distribution<double> factor(1 - 0x1p-8, 1 + 0x1p-8);
  double squares = 0;
  for (int trial = 0; trial < trials; ++trial) {
    for (auto [name, values] : model.values) {
      for (double& value : values) value *= factor(rng);
      moved.write(name, values);
    }
    moved.compute_gradients();
    squares += std::pow(gradient_distance(moved, model), 2);
  }
  return std::sqrt(squares / trials);
}

}  // namespace

TEST_CASE("model: loss and every tensor's gradient match float64 central differences, in every variant") {
  for (const std::string& device_name : goat::test::device_names()) {
    const auto device = open_device(device_name);
    for (const goat::test::ModelVariant& variant : goat::test::model_variants()) {
      const std::uint64_t seed = goat::test::fresh_seed();
      INFO("device " << device_name << ", " << variant.name << ", seed " << seed);
      const Config config = tiny_config(variant.settings);
      const BatchShape shape{2, config.data.seq_len};
      TestModel test(config, *device, shape, seed);
      test.compute_gradients();
      CHECK(test.mean_loss() ==
            Approx(goat::test::model_loss(config, test.values, test.inputs, test.targets)).epsilon(1e-5));

      // Some gradients are exactly zero but for rounding (a bias on all keys shifts whole rows of logits):
      // noise is measured against the whole gradient.
      double squares = 0;
      for (const StoredTensor& tensor : test.parameters.stored())
        for (const double g : test.gradient(tensor)) squares += g * g;
      const double noise = 8 * 0x1p-24 * std::sqrt(squares);

      Rng rng(seed + 1);
      std::normal_distribution<double> normal;
      for (const StoredTensor& tensor : test.parameters.stored()) {
        INFO(tensor.name);
        // Directional derivative along a random direction: every element of the gradient takes part.
        std::vector<double>& values = test.values.at(tensor.name);
        const std::vector<double> start = values, gradient = test.gradient(tensor);
        std::vector<double> direction(values.size());
        for (double& d : direction) d = normal(rng);
        const auto loss_at = [&](double step) {
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = start[i] + step * direction[i];
          return goat::test::model_loss(config, test.values, test.inputs, test.targets);
        };
        const double h = 1e-5 / std::sqrt(static_cast<double>(values.size()));
        const double want = (loss_at(h) - loss_at(-h)) / (2 * h);
        values = start;
        double got = 0, terms = 0;
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          got += gradient[i] * direction[i];
          terms += gradient[i] * gradient[i] * direction[i] * direction[i];
        }
        INFO("got " << got << ", want " << want);
        CHECK(std::abs(got - want) <= 1e-4 * std::sqrt(terms) + noise);
      }
    }
  }
}

TEST_CASE("model: in bf16, loss and gradients are those of fp32 but for the rounding of activations") {
  for (const std::string& device_name : goat::test::device_names(DType::bf16)) {
    const auto device = open_device(device_name);
    for (const goat::test::ModelVariant& variant : goat::test::blocks_and_attentions()) {
      const std::uint64_t seed = goat::test::fresh_seed();
      INFO("device " << device_name << ", " << variant.name << ", seed " << seed);
      const Config config = tiny_config(variant.settings);
      const BatchShape shape{2, config.data.seq_len};
      TestModel exact(config, *device, shape, seed), rounded(config, *device, shape, seed, DType::bf16);
      for (const StoredTensor& tensor : exact.parameters.stored()) {
        const std::vector<double> values = goat::test::rounded_to(DType::bf16, exact.values.at(tensor.name));
        for (TestModel* test : {&exact, &rounded}) test->write(tensor.name, values);
      }
      for (TestModel* test : {&exact, &rounded}) test->compute_gradients();
      CHECK(rounded.mean_loss() == Approx(exact.mean_loss()).epsilon(0.01));
      CHECK(rounded.mean_loss() != exact.mean_loss());
      const double error = gradient_distance(rounded, exact),
                   sensitivity = rounding_sensitivity(config, *device, shape, seed, exact);
      INFO("error " << error << ", sensitivity " << sensitivity);
      CHECK(error <= 2 * sensitivity);
    }
  }
}

namespace {
// A cpu device that adds up what is allocated on it.
class CountingDevice final : public CpuDevice {
 public:
  void* allocate(std::size_t bytes) override {
    allocated += bytes;
    return CpuDevice::allocate(bytes);
  }
  std::size_t allocated = 0;
};

// A cpu device that notes how it may compute.
class NotingDevice final : public CpuDevice {
 public:
  int products = 0, tf32_products = 0, bf16_products = 0, library_epilogues = 0, backward_passes = 0,
      deterministic_passes = 0;

 protected:
  using CpuDevice::launch;
  void launch(const LinearForward& op) override { product(op); }
  void launch(const LinearBackwardInput& op) override { product(op); }
  void launch(const LinearBackwardWeight& op) override { product(op); }
  void launch(const LinearGeluForward& op) override { product(op); }
  void launch(const LinearGeluBackwardInput& op) override { product(op); }
  void launch(const AttentionBackward& op) override {
    ++backward_passes;
    deterministic_passes += op.deterministic;
    CpuDevice::launch(op);
  }

 private:
  template <class Product>
  void product(const Product& op) {
    ++products;
    tf32_products += op.factors == Factors::tf32;
    bf16_products += op.factors == Factors::bf16;
    if constexpr (requires { op.epilogue; }) library_epilogues += op.epilogue == Epilogue::library;
    CpuDevice::launch(op);
  }
};
}  // namespace

TEST_CASE("model: model.tf32 and precision reach every matrix product, train.deterministic every backward") {
  const std::vector<Settings> blocks = {{}, {"model.block=llama", "model.tied=false"}};
  for (const Settings& block : blocks)
    for (const char* arithmetic : {"model.tf32=none", "model.tf32=all", "model.precision=bf16"})
      for (const bool deterministic : {false, true}) {
        const bool tf32 = arithmetic == std::string("model.tf32=all"),
                   bf16 = arithmetic == std::string("model.precision=bf16");
        const Config config = tiny_config(with(
            block, {arithmetic, deterministic ? "train.deterministic=true" : "train.deterministic=false"}));
        NotingDevice device;
        TestModel test(config, device, {2, config.data.seq_len}, 7);
        test.parameters.zero_gradients(device);
        test.model->forward_backward(device, 0.1f);
        test.model->next_logits(device, 0);
        INFO("block " << config.model.block);
        CHECK(device.products > 20);
        CHECK(device.tf32_products == (tf32 ? device.products : 0));
        CHECK(device.bf16_products == (bf16 ? device.products : 0));
        CHECK(device.backward_passes == 2);
        CHECK(device.deterministic_passes == (deterministic ? 2 : 0));
      }
}

TEST_CASE("model: model.epilogue reaches both passes of every GELU MLP") {
  const auto epilogues = [](const Settings& settings) {
    const Config config = tiny_config(settings);
    NotingDevice device;
    TestModel test(config, device, {2, config.data.seq_len}, 7);
    test.parameters.zero_gradients(device);
    test.model->forward_backward(device, 0.1f);
    return device.library_epilogues;
  };
  CHECK(epilogues({}) == 0);
  CHECK(epilogues({"model.epilogue=library"}) == 2 * 2);
  CHECK(epilogues({"model.epilogue=library", "model.recompute=block"}) == 2 * 3);
  CHECK(epilogues({"model.epilogue=library", "model.block=llama"}) == 0);
}

TEST_CASE("trainer: the memory that is planned, and printed, is what is allocated") {
  const Settings llama = {"model.block=llama", "model.attention=rope", "model.tied=false"};
  const std::vector<std::pair<const char*, Settings>> presets = {
      {"copy_mixture", {}}, {"copy_mixture", llama}, {"shakespeare", {"data.source=copy_mixture"}}};
  for (const auto& [preset, settings] : presets) {
    const Config config = load_config(preset, settings);
    const auto training = open_training_source(config);
    CountingDevice device;
    Trainer trainer(config, device, *training, nullptr);
    trainer.allocate();
    trainer.initialize();
    one_step(trainer);
    CHECK(device.allocated == trainer.memory().total_bytes());
  }
}

TEST_CASE("trainer: the same seed gives bitwise the same losses, another seed others") {
  for (const std::string& device_name : goat::test::device_names()) {
    const auto device = open_device(device_name);
    for (const goat::test::ModelVariant& variant : goat::test::blocks_and_attentions()) {
      INFO("device " << device_name << ", " << variant.name);
      const Config config = tiny_config(variant.settings);
      const std::vector<float> losses = losses_of_run(config, *device, 5);
      CHECK(losses_of_run(config, *device, 5) == losses);
      CHECK(losses_of_run(tiny_config(with(variant.settings, {"train.seed=2"})), *device, 5) != losses);
    }
  }
}

TEST_CASE("trainer: 20 steps on the CUDA kernels in fp32 give the cpu's losses to 1e-4") {
  for (const goat::test::ModelVariant& variant : goat::test::blocks_and_attentions()) {
    const Config config = tiny_config(with(variant.settings, {"model.precision=fp32", "train.steps=20"}));
    const std::vector<float> want = losses_of_run(config, *open_device("cpu"), 20);
    for (const std::string& device_name : goat::test::device_names()) {
      INFO("device " << device_name << ", " << variant.name);
      const std::vector<float> got = losses_of_run(config, *open_device(device_name), 20);
      REQUIRE(got.size() == want.size());
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == Approx(want[i]).epsilon(1e-4));
    }
  }
}

TEST_CASE("trainer: losses do not depend on the micro-batch beyond rounding") {
  const auto device = open_device("cpu");
  for (const goat::test::ModelVariant& variant : goat::test::blocks_and_attentions()) {
    const auto losses = [&](const char* micro_batch) {
      const Settings split = {std::string("train.micro_batch=") + micro_batch};
      return losses_of_run(tiny_config(with(variant.settings, split)), *device, 5);
    };
    INFO(variant.name);
    const std::vector<float> whole = losses("4");
    for (const char* micro_batch : {"1", "2"}) {
      const std::vector<float> split = losses(micro_batch);
      for (std::size_t i = 0; i < whole.size(); ++i) CHECK(split[i] == Approx(whole[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("trainer: the block of fineweb_1b learns to copy, with every attention, head tied and untied") {
  const auto device = open_device("cpu");
  const Settings small = {"model.layers=2",
                          "model.width=64",
                          "model.heads=4",
                          "model.ff_width=176",
                          "model.vocab=32",
                          "data.source=copy_mixture",
                          "data.copy_mixture.p_first=0.8",
                          "data.copy_mixture.p_prev=0.1",
                          "data.seq_len=32",
                          "train.batch=8",
                          "train.steps=60",
                          "train.warmup=10",
                          "train.lr=1e-2",
                          "train.min_lr=1e-3",
                          "eval.tokens=4096"};
  const std::vector<Settings> models = {
      {}, {"model.attention=rope", "model.tied=false"}, {"model.attention=none"}};
  for (const Settings& model : models) {
    const Config config = load_config("fineweb_1b", with(small, model));
    const std::vector<float> losses = losses_of_run(config, *device, config.steps());
    INFO("attention " << config.model.attention << ", from " << losses.front() << " to " << losses.back());
    CHECK(losses.back() < 0.5f * losses.front());
  }
}

namespace {
// Of sequence i of the inner source, only the first `counted(i)` targets count.
class MaskedSource final : public TokenSource {
 public:
  MaskedSource(std::unique_ptr<TokenSource> inner, std::function<std::size_t(std::uint64_t)> counted)
      : inner_(std::move(inner)), counted_(std::move(counted)) {}
  std::string description() const override { return "masked"; }
  std::uint64_t sequences() const override { return inner_->sequences(); }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    inner_->read(index, inputs, targets);
    std::ranges::fill(targets.subspan(counted_(index)), -1);
  }

 private:
  std::unique_ptr<TokenSource> inner_;
  std::function<std::size_t(std::uint64_t)> counted_;
};
}  // namespace

TEST_CASE("trainer: the loss is the mean over the step's counted targets, however unevenly they are masked") {
  const auto device = open_device("cpu");
  const auto counted = [](std::uint64_t index) {
    return static_cast<std::size_t>(2 * index % 7 + (index == 3));
  };
  std::vector<StepState> results;
  std::optional<double> by_hand;
  for (const char* micro_batch : {"4", "2", "1"}) {
    const Config config = tiny_config({std::string("train.micro_batch=") + micro_batch});
    MaskedSource training(open_training_source(config), counted);
    MaskedSource validation(open_training_source(config), counted);
    Trainer trainer(config, *device, training, &validation);
    trainer.allocate();
    trainer.initialize();
    if (!by_hand) {
      const Cut cut{.length = config.data.seq_len, .sequences = config.train.batch};
      const TokenLosses losses = evaluate(config, trainer.parameters(), *device, training, cut, false);
      CHECK(losses.tokens() == 0 + 2 + 4 + 7);
      by_hand = losses.nll();
    }
    results.push_back(one_step(trainer).scalars);
  }
  for (const StepState& result : results) {
    CHECK(result.loss == Approx(*by_hand).epsilon(1e-5));
    CHECK(result.grad_norm == Approx(results[0].grad_norm).epsilon(1e-5));
  }
}

TEST_CASE("trainer: a step without a counted target is refused, naming its sequences") {
  const auto device = open_device("cpu");
  const Config config = tiny_config();
  MaskedSource training(open_training_source(config),
                        [](std::uint64_t index) { return index < 4 ? 5u : 0u; });
  Trainer trainer(config, *device, training, nullptr);
  trainer.allocate();
  trainer.initialize();
  one_step(trainer);
  CHECK_THROWS_WITH(one_step(trainer), ContainsSubstring("training sequences 4 to 7"));
  CHECK(trainer.consistent());
  CHECK(trainer.state().step == 1);
}

TEST_CASE("trainer: a step whose gradients are not finite changes nothing and is reported") {
  const auto device = open_device("cpu");
  const Config config = tiny_config();
  const auto training = open_training_source(config);
  Trainer trainer(config, *device, *training, nullptr);
  trainer.allocate();
  trainer.initialize();
  one_step(trainer);
  const StoredTensor& embedding = trainer.parameters().stored().front();
  std::vector<float> values = trainer.parameters().read(*device, embedding);
  std::vector<float> poisoned = values;
  for (float& value : poisoned) value = std::numeric_limits<float>::quiet_NaN();
  trainer.parameters().write(*device, embedding, poisoned);
  const StoredTensor& other = trainer.parameters().stored().back();
  const std::vector<float> before = trainer.parameters().read(*device, other);
  CHECK(one_step(trainer).scalars.consecutive_skips == 1);
  const StepState result = one_step(trainer).scalars;
  CHECK(result.skip_update == 1);
  CHECK(result.consecutive_skips == 2);
  CHECK(result.updates == 1);
  CHECK(trainer.parameters().read(*device, other) == before);

  trainer.parameters().write(*device, embedding, values);
  const StepState recovered = one_step(trainer).scalars;
  CHECK(recovered.skip_update == 0);
  CHECK(recovered.consecutive_skips == 0);
  CHECK(recovered.updates == 2);
}

TEST_CASE("spike filter: limits are mean + z deviations of a full window; what is not finite never enters") {
  SpikeFilter filter(3, 4);
  for (const double value : {1.0, 3.0, 1.0}) filter.add(value, 10 * value);
  CHECK(filter.loss_limit() == 0);
  filter.add(std::numeric_limits<double>::quiet_NaN(), 1);
  filter.add(1, std::numeric_limits<double>::infinity());
  CHECK(filter.loss_limit() == 0);
  filter.add(3, 30);
  CHECK(filter.loss_limit() == 5);        // 2 + 3 * 1
  CHECK(filter.grad_norm_limit() == 50);  // 20 + 3 * 10
  filter.add(3, 30);                      // window 3 1 3 3
  CHECK(filter.loss_limit() == Approx(2.5 + 3 * std::sqrt(0.75)));
  CHECK(SpikeFilter(3, 4, filter.values()).loss_limit() == filter.loss_limit());
  SpikeFilter off(0, 2);
  for (int i = 0; i < 5; ++i) off.add(1, 1);
  CHECK(off.loss_limit() == 0);
}

TEST_CASE("trainer: rows of the QKV projection that would feed the lanes stay exactly zero") {
  const auto device = open_device("cpu");
  const Config config = tiny_config();
  const auto training = open_training_source(config);
  Trainer trainer(config, *device, *training, nullptr);
  trainer.allocate();
  trainer.initialize();
  for (std::int64_t step = 0; step < 5; ++step) one_step(trainer);
  const Parameter& qkv = trainer.parameters().at("blocks.1.attn.qkv.weight");
  const Tensor lanes =
      qkv.value.slice(0, 0, 2 * config.model.heads).slice(1, config.content_dim(), config.lane_dim());
  for (const double value : goat::test::values_of(*device, lanes)) CHECK(value == 0.0);
  double size = 0;
  for (const double value : goat::test::values_of(*device, qkv.value)) size += std::abs(value);
  CHECK(size > 0);
}

TEST_CASE(
    "parameters: the same tensor starts the same in every variant, with the standard deviations of the "
    "specification") {
  const auto device = open_device("cpu");
  const auto initial = [&](const Settings& settings, const std::string& name) {
    const Config config = tiny_config(settings);
    goat::test::tiny_model::TestParameters allocated(config, *device);
    ParameterSet& parameters = allocated.parameters;
    parameters.initialize(*device, 1);
    for (const StoredTensor& tensor : parameters.stored())
      if (tensor.name == name) return parameters.read(*device, tensor);
    throw std::logic_error("no tensor " + name);
  };
  const auto deviation = [](const std::vector<float>& values) {
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(sum / static_cast<double>(values.size()));
  };
  for (const char* setting :
       {"model.attention=none", "model.attention=rope", "model.block=llama", "model.tied=false"})
    for (const char* name : {"embedding.weight", "blocks.1.mlp.up.weight", "blocks.1.attn.v.weight"}) {
      INFO(setting << ", " << name);
      CHECK(initial({}, name) == initial({setting}, name));
    }
  const Settings wide = {"model.width=96", "model.ff_width=384", "prior.sink_init_scale=1e-3",
                         "prior.sink_hidden=64"};
  CHECK(deviation(initial(wide, "blocks.0.mlp.up.weight")) == Approx(0.02).epsilon(0.02));
  CHECK(deviation(initial(wide, "blocks.0.attn.q.weight")) == Approx(0.02).epsilon(0.03));
  CHECK(deviation(initial(with(wide, {"model.block=llama"}), "blocks.0.mlp.gate.weight")) ==
        Approx(0.02).epsilon(0.02));
  CHECK(deviation(initial(with(wide, {"model.tied=false"}), "head.weight")) == Approx(0.02).epsilon(0.1));
  CHECK(initial({"model.block=llama"}, "blocks.0.norm1.weight") == std::vector<float>(24, 1.0f));
  CHECK(deviation(initial(wide, "blocks.0.attn.prior.sink.w1")) == Approx(1e-3).epsilon(0.1));
  CHECK(initial({"prior.init=zero"}, "blocks.0.attn.prior.alpha") == std::vector<float>(4, 0.0f));
  CHECK(initial({"prior.init=zero"}, "blocks.0.attn.prior.slope") == std::vector<float>(2, 0.0f));
  CHECK(initial({"prior.init=alibi"}, "blocks.0.attn.prior.slope") ==
        std::vector<float>{0.0625f, 0.00390625f});
  CHECK(initial({"prior.init=alibi"}, "blocks.0.attn.prior.beta") == std::vector<float>(4, 0.0f));
  CHECK(std::log1p(std::exp(initial({"prior.init=alibi", "prior.recency=softplus"},
                                    "blocks.0.attn.prior.slope")[0])) == Approx(0.0625).epsilon(1e-6));
}
