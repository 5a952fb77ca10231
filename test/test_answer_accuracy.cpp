// The answers of a model: the most likely tokens of the right rows, in passes of any size.
#include "train/eval/answer_accuracy.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/model_oracle.h"
#include "test/operand.h"
#include "test/tiny_model.h"
#include "train/memory/float_copies.h"

using namespace goat;
using namespace goat::test::tiny_model;

namespace {

// Random tokens; the answer of sequence i are its last 1 + i % 3 targets. `answers` replaces them, where it
// is not empty.
class Questions final : public TokenSource {
 public:
  std::vector<std::vector<std::int32_t>> answers;

  std::string description() const override { return "questions"; }
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    goat::test::Rng rng(index);
    std::uniform_int_distribution<std::int32_t> token(0, 10);
    for (std::int32_t& input : inputs) input = token(rng);
    for (std::int32_t& target : targets) target = token(rng);
    if (answers.empty()) return;
    const auto& own = answers[index];
    std::ranges::copy(own, targets.end() - std::ssize(own));
  }
  TargetRange answer(std::uint64_t index) const override {
    return {9 - 1 - static_cast<std::int64_t>(index % 3), 9};
  }
};

// What next_logits, a pass for each, says to be most likely.
std::vector<std::vector<std::int32_t>> likely_answers(const Config& config, TestModel& test,
                                                      std::int64_t sequences) {
  std::vector<std::vector<std::int32_t>> answers;
  Questions source;
  std::vector<std::int32_t> inputs(9), targets(9);
  for (std::int64_t i = 0; i < sequences; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    source.read(index, inputs, targets);
    test.model->load(test.device, inputs);
    answers.emplace_back();
    for (std::int64_t row = source.answer(index).first; row < 9; ++row) {
      std::vector<float> logits(static_cast<std::size_t>(config.model.vocab));
      download_floats(test.device, logits, test.model->next_logits(test.device, row));
      answers.back().push_back(most_likely(logits));
    }
  }
  return answers;
}

}  // namespace

TEST_CASE("answers: the most likely token is the first of the greatest") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(most_likely(std::vector<float>{1, 3, 2, 3}) == 1);
  CHECK(most_likely(std::vector<float>{-2, -2, -5}) == 0);
  CHECK(most_likely(std::vector<float>{-2, nan, -1}) == 2);
}

TEST_CASE("answers: right tokens and answers are counted as one pass for each row counts them") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    INFO("device " << name << ", " << name_of(dtype));
    const auto device = open_device(name);
    const Config config = tiny_config();
    TestModel one(config, *device, {1, 9}, 11, dtype), three(config, *device, {3, 9}, 11, dtype);
    Questions source;
    source.answers = likely_answers(config, one, 7);
    const auto count = [&] {
      std::vector<std::int64_t> finished;
      const AnswerAccuracy accuracy =
          measure_answers(*three.model, *device, source, {9, 7}, config.model.vocab,
                          [&](std::int64_t sequences) { finished.push_back(sequences); });
      CHECK(finished == std::vector<std::int64_t>{3, 6, 7});
      CHECK(accuracy.answers == 7);
      CHECK(accuracy.tokens == 1 + 2 + 3 + 1 + 2 + 3 + 1);
      CHECK(accuracy.losses.answer_counted == accuracy.tokens);
      return accuracy;
    };
    CHECK(count().right_answers == 7);
    CHECK(count().right_tokens == 13);
    source.answers[2][1] = (source.answers[2][1] + 1) % 11;
    source.answers[4][0] = (source.answers[4][0] + 1) % 11;
    source.answers[4][1] = (source.answers[4][1] + 1) % 11;
    const AnswerAccuracy with_errors = count();
    CHECK(with_errors.right_answers == 5);
    CHECK(with_errors.right_tokens == 10);
    CHECK(with_errors.strict() == 5.0 / 7);
    CHECK(with_errors.per_token() == 10.0 / 13);
  }
}

TEST_CASE("answers: their log-probability is the float64 oracle's, and no other target counts in it") {
  const auto device = open_device("cpu");
  const Config config = tiny_config();
  TestModel test(config, *device, {2, 9}, 5);
  Questions source;
  std::vector<std::int32_t> inputs(18), targets(18);
  for (std::uint64_t i = 0; i < 2; ++i)
    source.read(i, std::span(inputs).subspan(9 * i, 9), std::span(targets).subspan(9 * i, 9));
  const std::vector<double> losses = goat::test::token_losses(config, test.values, inputs, targets);
  const AnswerAccuracy accuracy = measure_answers(*test.model, *device, source, {9, 2}, config.model.vocab);
  CHECK(accuracy.log_probability() == Approx(-(losses[8] + losses[16] + losses[17]) / 3).epsilon(1e-5));
}

TEST_CASE("answers: longer ones than there is memory for logits are read in pieces") {
  const auto device = open_device("cpu");
  DeviceInfo info = device->info();
  info.chunk_elements = 1;  // chunks of 64 rows
  const Config config = tiny_config({"data.seq_len=150"});
  TestModel test(config, *device, info, {1, 150}, 3, DType::f32);
  REQUIRE(test.model->most_logit_rows() < 100);
  CHECK_THROWS_AS(test.model->logits(*device, 0, 100), std::invalid_argument);

  class Long final : public TokenSource {
   public:
    std::vector<std::int32_t> inputs, targets;
    std::string description() const override { return "long"; }
    std::uint64_t sequences() const override { return endless; }
    void read(std::uint64_t, std::span<std::int32_t> x, std::span<std::int32_t> y) override {
      std::ranges::copy(inputs, x.begin());
      std::ranges::copy(targets, y.begin());
    }
    TargetRange answer(std::uint64_t) const override { return {40, 140}; }
  } source;
  source.inputs = test.inputs;
  source.targets = test.targets;
  for (std::size_t row = 40; row < 140; ++row) {
    std::vector<float> logits(static_cast<std::size_t>(config.model.vocab));
    download_floats(*device, logits, test.model->next_logits(*device, static_cast<std::int64_t>(row)));
    source.targets[row] = most_likely(logits);
  }
  const AnswerAccuracy accuracy = measure_answers(*test.model, *device, source, {150, 1}, config.model.vocab);
  CHECK(accuracy.right_tokens == 100);
  CHECK(accuracy.right_answers == 1);
}
