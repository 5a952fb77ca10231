// train.loss: loss and gradient of a whole step against the float64 oracle, whatever the micro-batch.
#include <cmath>
#include <string>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/model_oracle.h"
#include "test/one_step.h"
#include "test/operand.h"
#include "test/question_source.h"
#include "test/tiny_model.h"
#include "train/model/evaluation.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::test::QuestionSource;
using namespace goat::test::tiny_model;

namespace {

struct Batch {
  std::vector<std::int32_t> inputs, targets;
  std::vector<bool> in_answer;
};

Batch first_sequences(const Config& config, std::int64_t count) {
  QuestionSource source;
  Batch batch;
  const auto length = static_cast<std::size_t>(config.data.seq_len);
  std::vector<std::int32_t> inputs(length), targets(length);
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
    source.read(i, inputs, targets);
    batch.inputs.insert(batch.inputs.end(), inputs.begin(), inputs.end());
    batch.targets.insert(batch.targets.end(), targets.begin(), targets.end());
    for (std::size_t t = 0; t < length; ++t) batch.in_answer.push_back(t >= 2 && t < 2 + i % 5);
  }
  return batch;
}

// The loss by its definition.
double loss_by_definition(const std::string& kind, double span_weight, const Batch& batch,
                          const std::vector<double>& losses) {
  double sum = 0, counted = 0, span_sum = 0, span_counted = 0;
  for (std::size_t n = 0; n < losses.size(); ++n) {
    if (batch.targets[n] < 0) continue;
    sum += losses[n], ++counted;
    if (batch.in_answer[n]) span_sum += losses[n], ++span_counted;
  }
  const double mean = sum / counted, span = span_sum / span_counted;
  if (kind == "mean") return mean;
  return kind == "span" ? span : (mean + span_weight * span) / (1 + span_weight);
}

double gradient_at(Device& device, const StoredTensor& tensor, const std::vector<double>& direction,
                   double& terms) {
  Tensor view = tensor.layout;
  view.dtype = DType::f32;
  view.data = tensor.parameter->grad.as<float>() + tensor.offset;
  double along = 0;
  const std::vector<double> gradient = goat::test::values_of(device, view);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    along += gradient[i] * direction[i];
    terms += gradient[i] * gradient[i] * direction[i] * direction[i];
  }
  return along;
}

// One step; its loss and its gradient along a random direction of all weights.
void check_step(Device& device, const Config& config, const std::string& kind) {
  QuestionSource source;
  Trainer trainer(config, device, source, nullptr);
  trainer.allocate();
  trainer.initialize();
  const std::uint64_t seed = goat::test::fresh_seed();
  INFO("seed " << seed);
  goat::test::StoredValues values = goat::test::add_noise(device, trainer.parameters(), seed);
  const Batch batch = first_sequences(config, config.train.batch);
  const auto oracle = [&] {
    return loss_by_definition(kind, config.train.span_weight, batch,
                              goat::test::token_losses(config, values, batch.inputs, batch.targets));
  };
  const double want_loss = oracle();
  CHECK(goat::test::one_step(trainer).scalars.loss == Approx(want_loss).epsilon(1e-5));

  goat::test::Rng rng(seed + 1);
  std::normal_distribution<double> normal;
  const double h = 1e-6;
  double got = 0, terms = 0;
  const goat::test::StoredValues start = values;
  goat::test::StoredValues down = values;
  for (const StoredTensor& tensor : trainer.parameters().stored()) {
    std::vector<double> direction(values.at(tensor.name).size());
    for (double& d : direction) d = normal(rng);
    for (std::size_t i = 0; i < direction.size(); ++i) {
      values.at(tensor.name)[i] = start.at(tensor.name)[i] + h * direction[i];
      down.at(tensor.name)[i] = start.at(tensor.name)[i] - h * direction[i];
    }
    got += gradient_at(device, tensor, direction, terms);
  }
  const double up = oracle();
  values = down;
  const double want = (up - oracle()) / (2 * h);
  INFO("gradient " << got << ", want " << want);
  CHECK(std::abs(got - want) <= 2e-4 * std::sqrt(terms));
}

}  // namespace

TEST_CASE("train.loss: loss and gradient over 2 and 8 micro-batches are the float64 oracle's") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = open_device(name);
    for (const char* kind : {"mean", "span", "mixed"})
      for (const char* micro_batch : {"4", "1"}) {
        INFO("device " << name << ", " << kind << ", micro-batch " << micro_batch);
        check_step(
            *device,
            tiny_config({"model.layers=1", "train.batch=8", std::string("train.micro_batch=") + micro_batch,
                         std::string("train.loss=") + kind, "train.span_weight=3", "train.clip=0",
                         "model.precision=fp32"}),
            kind);
      }
  }
}

TEST_CASE("train.loss: validation is the loss that is trained, over all of its sequences") {
  const auto device = open_device("cpu");
  for (const char* kind : {"mean", "span", "mixed"}) {
    INFO(kind);
    const Config config = tiny_config({std::string("train.loss=") + kind, "train.span_weight=3"});
    QuestionSource training, validation;
    Trainer trainer(config, *device, training, &validation);
    trainer.allocate();
    trainer.initialize();
    const Cut cut{.length = config.data.seq_len, .sequences = config.eval.tokens / config.data.seq_len};
    const std::vector<float> losses =
        evaluate(config, trainer.parameters(), *device, validation, cut, true).per_token;
    const double want = loss_by_definition(kind, 3, first_sequences(config, cut.sequences),
                                           std::vector<double>(losses.begin(), losses.end()));
    CHECK(trainer.validate().value() == Approx(want).epsilon(1e-6));
  }
}

TEST_CASE("train.loss: a source without answers is refused where the loss needs them") {
  for (const char* kind : {"span", "mixed"}) {
    const Config config = tiny_config({std::string("train.loss=") + kind});
    CHECK_THROWS_AS(open_training_source(config), ConfigError);
    CHECK_THROWS_WITH(open_training_source(config),
                      ContainsSubstring("train.loss = \"" + std::string(kind)) &&
                          ContainsSubstring("copy_mixture") && ContainsSubstring("passkey or niah"));
  }
}
