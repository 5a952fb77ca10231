// Training in bf16: what is kept in fp32 (gradients, masters, Adam's state) is seen to be, and a bf16 run
// follows an fp32 run.
#include <cmath>
#include <filesystem>

#include "kernels/bf16_bits.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/one_step.h"
#include "test/operand.h"
#include "test/temporary_folder.h"
#include "train/model/evaluation.h"
#include "train/run/trained_model.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::test::one_step;
using goat::test::Rng;
namespace fs = std::filesystem;

namespace {

RankGroup& alone() {
  static RankGroup group(Launch{}, {});
  return group;
}

// One layer of width 64 on the built-in task, 512 tokens a step.
Config one_layer(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"train.batch=8", "train.steps=200", "train.warmup=20", "eval.tokens=1024"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("copy_mixture", all);
}

// A training plan in device memory, with initial weights.
struct Training {
  Training(const Config& config, Device& on) : device(on), plan(config, on) {
    plan.memory.allocate(device);
    plan.parameters.bind();
    plan.replicas.connect(device, ranks);
    plan.parameters.initialize(device, 1);
    scope.emplace(device, workspace_memory(plan.workspace));
    plan.model->bind(device);
  }

  std::vector<double> values(const Tensor& tensor) { return goat::test::values_of(device, tensor); }
  // Of all parameters, one group after the other.
  std::vector<double> gradients() {
    std::vector<double> all;
    for (const auto& group : plan.parameters.groups())
      for (const double value : values(group.grad)) all.push_back(value);
    return all;
  }
  // Fills the gradients, and sets the scalars as StepVerdict does for update number `update`.
  void set_gradients(std::int64_t update, float learning_rate, const std::function<float()>& draw) {
    for (const auto& group : plan.parameters.groups()) {
      std::vector<float> grad(static_cast<std::size_t>(group.elements));
      for (float& value : grad) value = draw();
      device.upload(group.grad.data, grad.data(), group.grad.bytes());
    }
    StepState scalars{};
    scalars.learning_rate = learning_rate;
    scalars.clip_scale = 1;
    scalars.updates = update;
    device.upload(plan.state.data, &scalars, sizeof scalars);
  }

  Device& device;
  Communicators ranks = unconnected({});
  TrainingPlan plan;
  std::optional<WorkspaceScope> scope;
};

const ParameterSet::Group& bf16_group(const TrainingPlan& plan) {
  for (const auto& group : plan.parameters.groups())
    if (group.dtype == DType::bf16 && group.decay) return group;
  throw std::logic_error("the model has no bf16 matrices");
}

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

std::vector<float> losses_of(Trainer& trainer, std::int64_t steps) {
  std::vector<float> losses;
  for (std::int64_t step = 0; step < steps; ++step) losses.push_back(one_step(trainer).scalars.loss);
  return losses;
}

std::vector<std::vector<float>> weights_of(Trainer& trainer, Device& device) {
  std::vector<std::vector<float>> weights;
  for (const StoredTensor& tensor : trainer.parameters().stored())
    weights.push_back(trainer.parameters().read(device, tensor));
  return weights;
}

}  // namespace

TEST_CASE("bf16: the gradient of 8 micro-batches is the float64 sum of theirs to 1e-5") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = open_device(name);
    const Config config = one_layer({"train.micro_batch=1"});
    const auto source = open_training_source(config);
    Training training(config, *device);
    std::vector<std::int32_t> inputs(64), targets(64);
    const auto load = [&](std::uint64_t sequence) {
      source->read(sequence, inputs, targets);
      training.plan.model->load(*device, inputs, targets);
    };
    const auto begin = [&] {
      training.plan.replicas.begin_leaf();
      device->run(Fill{.out = training.plan.token_weights, .value = 1.0f / 512});
    };
    std::vector<double> sum;
    for (std::uint64_t sequence = 0; sequence < 8; ++sequence) {
      begin();
      load(sequence);
      training.plan.add_micro_batch(*device, false);
      const std::vector<double> part = training.gradients();
      sum.resize(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
    }
    begin();
    for (std::uint64_t sequence = 0; sequence < 8; ++sequence) {
      load(sequence);
      training.plan.add_micro_batch(*device, false);
    }
    std::vector<double> difference = training.gradients();
    for (std::size_t i = 0; i < sum.size(); ++i) difference[i] -= sum[i];
    INFO("device " << name << ": relative difference " << norm(difference) / norm(sum));
    CHECK(norm(sum) > 0.1);
    CHECK(norm(difference) < 1e-5 * norm(sum));
  }
}

// Beside 1, bf16 numbers are 2^-8 and 2^-7 apart: a weight without a master would not move.
TEST_CASE("bf16: 300 updates of 2^-12 of a weight arrive in its master to 1 %, and in its value") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = open_device(name);
    for (const char* rounding : {"nearest", "stochastic"}) {
      INFO("device " << name << ", rounding " << rounding);
      Training training(one_layer({"train.weight_decay=0", std::string("train.rounding=") + rounding}),
                        *device);
      CHECK((training.plan.rounding() == Rounding::stochastic) == (rounding == std::string("stochastic")));
      const ParameterSet& parameters = training.plan.parameters;
      const StoredTensor& embedding = parameters.stored().front();
      parameters.write(*device, embedding,
                       std::vector<float>(static_cast<std::size_t>(embedding.layout.elements()), 1.0f));
      for (std::int64_t update = 1; update <= 300; ++update) {
        training.set_gradients(update, 0x1p-12f, [] { return 1.0f; });
        training.plan.update(*device);
      }
      const double moved = 300 * 0x1p-12;
      double worst = 0;
      for (const float weight : parameters.read(*device, embedding))
        worst = std::max(worst, std::abs(1.0 - static_cast<double>(weight) - moved));
      CHECK(worst < 0.01 * moved);
      Tensor value = embedding.layout;
      value.data = embedding.parameter->value.data;
      for (const double rounded : training.values(value)) REQUIRE(std::abs(rounded - (1 - moved)) <= 0x1p-8);
    }
  }
}

TEST_CASE("bf16: Adam's m and v equal a float64 replay to 1e-5, with beta2 = 0.999") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = open_device(name);
    INFO("device " << name);
    Training training(one_layer({"train.beta2=0.999"}), *device);
    const auto seed = goat::test::fresh_seed();
    INFO("GOAT_TEST_SEED=" << seed);
    const auto& group = bf16_group(training.plan);
    constexpr double beta1 = 0.9f, beta2 = 0.999f;  // as AdamW has them
    std::vector<double> m(static_cast<std::size_t>(group.elements)), v(m.size()), grad;
    Rng rng(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t update = 1; update <= 30; ++update) {
      training.set_gradients(update, 1e-3f, [&] { return normal(rng); });
      grad = training.values(group.grad);
      training.plan.update(*device);
      for (std::size_t i = 0; i < m.size(); ++i) {
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i];
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] * grad[i];
      }
    }
    const auto off = [&](const Tensor& got, std::vector<double> want) {
      const double size = norm(want);
      const std::vector<double> values = training.values(got);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] -= values[i];
      return norm(want) / size;
    };
    CHECK(off(group.m, m) < 1e-5);
    CHECK(off(group.v, v) < 1e-5);
  }
}

TEST_CASE("bf16: a run that is interrupted ends as one that is not, whatever the rounding") {
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = open_device(name);
    for (const char* rounding : {"nearest", "stochastic"}) {
      INFO("device " << name << ", rounding " << rounding);
      const Config config = one_layer({std::string("train.rounding=") + rounding});
      const auto source = open_training_source(config);
      Trainer whole(config, *device, *source, nullptr);
      whole.allocate();
      whole.initialize();
      losses_of(whole, 3);
      const goat::test::TemporaryFolder folder;
      const fs::path checkpoint =
          save_checkpoint(folder.path(), config, whole.state(), {}, *device, whole.parameters(), alone());
      const std::vector<float> want = losses_of(whole, 3);

      Trainer resumed(config, *device, *source, nullptr, verify_checkpoint(checkpoint).state);
      resumed.allocate();
      resumed.restore(checkpoint);
      CHECK(losses_of(resumed, 3) == want);
      CHECK(weights_of(resumed, *device) == weights_of(whole, *device));
    }
  }
}

TEST_CASE("bf16: a checkpoint of any device and precision resumes on any other, from the same fp32 weights") {
  std::vector<std::pair<std::string, std::string>> variants = {{"cpu", "fp32"}, {"cpu", "bf16"}};
  for (const std::string& name : goat::test::device_names(DType::bf16))
    for (const char* precision : {"fp32", "bf16"}) variants.emplace_back(name, precision);
  for (const auto& [from, precision] : variants) {
    const Config config = one_layer({"model.precision=" + precision});
    const auto device = open_device(from);
    const auto source = open_training_source(config);
    Trainer trainer(config, *device, *source, nullptr);
    trainer.allocate();
    trainer.initialize();
    losses_of(trainer, 2);
    const goat::test::TemporaryFolder folder;
    const fs::path checkpoint =
        save_checkpoint(folder.path(), config, trainer.state(), {}, *device, trainer.parameters(), alone());
    const float want = losses_of(trainer, 1)[0];
    for (const auto& [to, other_precision] : variants) {
      INFO("from " << precision << " on " << from << " to " << other_precision << " on " << to);
      const auto other = open_device(to);
      Trainer resumed(one_layer({"model.precision=" + other_precision}), *other, *source, nullptr,
                      verify_checkpoint(checkpoint).state);
      resumed.allocate();
      resumed.restore(checkpoint);
      const goat::test::TemporaryFolder again;
      const fs::path copy =
          save_checkpoint(again.path(), config, resumed.state(), {}, *other, resumed.parameters(), alone());
      const auto files = [](const fs::path& path) { return verify_checkpoint(path).files; };
      for (std::size_t i = 0; i < files(copy).size(); ++i)
        CHECK(files(copy)[i].pieces == files(checkpoint)[i].pieces);
      CHECK(losses_of(resumed, 1)[0] == Approx(want).margin(0.01));
    }
  }
}

// Last, because it takes longest. What was measured: the message of the failing check, or `-s`.
TEST_CASE("bf16: 200 steps stay within 0.02 nats of fp32 on average, and evaluate alike from T to 16 T") {
  const Config config = one_layer();
  const auto cpu = open_device("cpu");
  const auto source = open_training_source(config);
  Trainer exact(config, *cpu, *source, nullptr);
  exact.allocate();
  exact.initialize();
  const std::vector<float> want = losses_of(exact, config.train.steps);
  const goat::test::TemporaryFolder folder;
  const fs::path checkpoint =
      save_checkpoint(folder.path(), config, exact.state(), {}, *cpu, exact.parameters(), alone());
  for (const std::string& name : goat::test::device_names(DType::bf16)) {
    const auto device = open_device(name);
    Trainer trainer(config, *device, *source, nullptr);
    REQUIRE(trainer.parameters().dtype() == DType::bf16);
    trainer.allocate();
    trainer.initialize();
    const std::vector<float> got = losses_of(trainer, config.train.steps);
    double difference = 0;
    for (std::size_t step = 0; step < want.size(); ++step)
      difference += std::abs(static_cast<double>(got[step]) - static_cast<double>(want[step])) /
                    static_cast<double>(want.size());
    INFO("device " << name << ": mean difference of the losses " << difference << ", of the last "
                   << got.back() - want.back());
    CHECK(difference < 0.02);
    CHECK(difference > 0);

    const TrainedModel model(checkpoint, *device, "bf16"), reference(checkpoint, *cpu, "");
    REQUIRE(model.dtype() == DType::bf16);
    for (const std::int64_t length : {64, 256, 1024}) {
      const Cut cut{.length = length, .sequences = 4096 / length};
      Config data = config;
      data.data.seq_len = length;
      const auto sequences = open_validation_source(data);
      const auto nll = [&](const TrainedModel& of, Device& on) {
        return evaluate(of.config(), of.parameters(), on, *sequences, cut, false).nll();
      };
      const double in_bf16 = nll(model, *device), in_fp32 = nll(reference, *cpu);
      INFO("length " << length << ": " << in_bf16 << " in bf16, " << in_fp32 << " in fp32");
      CHECK(std::abs(std::exp(in_bf16 - in_fp32) - 1) < 1e-3);
    }
  }
}
