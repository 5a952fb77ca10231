#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/catch.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using namespace goat;
using namespace goat::test;

namespace {

using Values = std::vector<double>;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  std::int64_t rows, vocab, padded;
};

// What goes into a CrossEntropy: targets of -1 are masked; without weights every row has `weight`.
struct Batch {
  Shape shape;
  Values logits;  // padded columns are NaN
  Values targets;
  Values weights;
  double weight = 1;
  DType dtype = DType::f32;  // of the logits, which hold values of this type

  double weight_of(std::size_t row) const { return weight * (weights.empty() ? 1.0 : weights[row]); }
};

std::size_t at(std::size_t row, std::int64_t column, const Shape& s) {
  return row * static_cast<std::size_t>(s.padded) + static_cast<std::size_t>(column);
}

Batch random_batch(Rng& rng, DType dtype, const Shape& s, double spread, double offset = 0) {
  std::normal_distribution<double> normal(offset, spread);
  std::uniform_int_distribution<std::int64_t> token(0, s.vocab - 1);
  Batch batch{s, {}, {}, {}, 1, dtype};
  for (std::int64_t n = 0; n < s.rows; ++n) {
    for (std::int64_t v = 0; v < s.padded; ++v)
      batch.logits.push_back(v < s.vocab ? rounded_to(dtype, normal(rng)) : not_a_number);
    batch.targets.push_back(static_cast<double>(token(rng)));
  }
  batch.targets.front() = static_cast<double>(s.vocab - 1);
  return batch;
}

double log_sum_exp(const Batch& batch, std::size_t row) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t v = 0; v < batch.shape.vocab; ++v)
    largest = std::max(largest, batch.logits[at(row, v, batch.shape)]);
  for (std::int64_t v = 0; v < batch.shape.vocab; ++v)
    sum += std::exp(batch.logits[at(row, v, batch.shape)] - largest);
  return largest + std::log(sum);
}

Values losses(const Batch& batch) {
  Values result;
  for (std::size_t n = 0; n < batch.targets.size(); ++n) {
    const auto target = static_cast<std::int64_t>(batch.targets[n]);
    result.push_back(target < 0 ? 0.0 : log_sum_exp(batch, n) - batch.logits[at(n, target, batch.shape)]);
  }
  return result;
}

Values gradient(const Batch& batch) {
  Values result(batch.logits.size(), 0.0);
  for (std::size_t n = 0; n < batch.targets.size(); ++n) {
    const auto target = static_cast<std::int64_t>(batch.targets[n]);
    if (target < 0) continue;
    const double normaliser = log_sum_exp(batch, n);
    for (std::int64_t v = 0; v < batch.shape.vocab; ++v) {
      const std::size_t i = at(n, v, batch.shape);
      result[i] = batch.weight_of(n) * (std::exp(batch.logits[i] - normaliser) - (v == target ? 1.0 : 0.0));
    }
  }
  return result;
}

struct Result {
  Values losses, logits;
};

Result run(Device& device, const Batch& batch, bool backward) {
  const Shape& s = batch.shape;
  const auto logits = Operand::of(device, batch.logits, {s.rows, s.padded}, "logits", batch.dtype);
  const auto targets = Operand::of(device, batch.targets, {s.rows}, "targets", DType::i32);
  const Operand row_losses(device, DType::f32, {s.rows}, "losses");
  CrossEntropy op{logits, row_losses, targets, {}, static_cast<float>(batch.weight), s.vocab, backward};
  if (batch.weights.empty()) {
    device.run(op);
  } else {
    const auto weights = Operand::of(device, batch.weights, {s.rows}, "weights");
    op.weights = weights;
    device.run(op);
  }
  return {row_losses.values(), logits.values()};
}

void check_against_float64(Device& device, const Batch& batch) {
  const Result got = run(device, batch, true);
  CHECK_FP32(got.losses, losses(batch));
  CHECK_MATCHES(batch.dtype, got.logits, gradient(batch));
  bool padding_is_zero = true;
  for (std::size_t n = 0; n < batch.targets.size(); ++n)
    for (std::int64_t v = batch.shape.vocab; v < batch.shape.padded; ++v)
      padding_is_zero = padding_is_zero && got.logits[at(n, v, batch.shape)] == 0;
  CHECK(padding_is_zero);
  CHECK(run(device, batch, false).losses == got.losses);
}

// GPT-2's vocabulary, or one that still gives each thread of a GPU's block several vectors.
Shape large(std::int64_t rows) { return reduced() ? Shape{rows, 9001, 9024} : Shape{rows, 50257, 50304}; }

std::vector<Shape> shapes() {
  const std::int64_t many = reduced() ? 5 : 65, padded = large(1).padded;
  return {{1, 1, 1},
          {3, 1, 8},
          {5, 2, 2},
          {5, 2, 3},
          {many, 3, 128},
          {5, 17, 17},
          {2 * many, 100, 128},
          {3, 513, 640},
          {3, 1025, 1025},
          {2, 2047, 2048},
          {2, 2049, 2052},
          large(3),
          {1, padded, padded}};
}

}  // namespace

TEST_CASE("classifier: losses and gradients match float64 at odd shapes, whatever the padding holds") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.rows << ", V "
                     << s.vocab << ", V_p " << s.padded);
      check_against_float64(*device, random_batch(rng, dtype, s, 2));
    }
  }
}

TEST_CASE("classifier: row weights scale the gradient and leave the losses") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  std::uniform_real_distribution<float> uniform(0.1f, 3);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.rows << ", V "
                     << s.vocab << ", V_p " << s.padded);
      Batch batch = random_batch(rng, dtype, s, 2);
      batch.weight = 1.0 / 1024;
      check_against_float64(*device, batch);
      for (std::int64_t n = 0; n < s.rows; ++n) batch.weights.push_back(uniform(rng));
      check_against_float64(*device, batch);
      batch.weights.front() = 0;
      check_against_float64(*device, batch);
    }
  }
}

TEST_CASE("classifier: masked rows have no loss and no gradient, even where their logits are NaN") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : {Shape{17, 65, 128}, large(3)}) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.rows << ", V "
                     << s.vocab << ", V_p " << s.padded);
      Batch batch = random_batch(rng, dtype, s, 2);
      batch.targets[1] = -1;
      for (std::int64_t v = 0; v < s.padded; ++v) batch.logits[at(1, v, s)] = not_a_number;
      check_against_float64(*device, batch);
      batch.targets.assign(batch.targets.size(), -1);
      check_against_float64(*device, batch);
    }
  }
}

TEST_CASE("classifier: logits of +-80 and offsets of +-10,000 match float64") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  std::bernoulli_distribution coin;
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : {Shape{17, 65, 128}, large(3)}) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.rows << ", V "
                     << s.vocab << ", V_p " << s.padded);
      Batch extreme = random_batch(rng, dtype, s, 1);
      for (double& value : extreme.logits)
        if (!std::isnan(value)) value = coin(rng) ? 80 : -80;
      check_against_float64(*device, extreme);
      check_against_float64(*device, random_batch(rng, dtype, s, 40));
      for (const double offset : {1e4, -1e4})
        check_against_float64(*device, random_batch(rng, dtype, s, 3, offset));
    }
  }
}

TEST_CASE(
    "classifier: a target with almost all probability keeps a loss and a gradient of full relative "
    "accuracy") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : {Shape{5, 2, 3}, Shape{17, 65, 128}, large(3)}) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.rows << ", V "
                     << s.vocab << ", V_p " << s.padded);
      Batch batch = random_batch(rng, dtype, s, 1);
      Values small_losses, target_gradients, got_gradients;
      for (std::size_t n = 0; n < batch.targets.size(); ++n) {
        const auto target = static_cast<std::int64_t>(batch.targets[n]);
        batch.logits[at(n, target, s)] = 30;
        double others = 0;
        for (std::int64_t v = 0; v < s.vocab; ++v)
          others += v == target ? 0 : std::exp(batch.logits[at(n, v, s)] - 30);
        small_losses.push_back(std::log1p(others));
        target_gradients.push_back(-others / (1 + others));
      }
      const Result got = run(*device, batch, true);
      for (std::size_t n = 0; n < batch.targets.size(); ++n)
        got_gradients.push_back(got.logits[at(n, static_cast<std::int64_t>(batch.targets[n]), s)]);
      CHECK_FP32(got.losses, small_losses);
      CHECK_MATCHES(dtype, got_gradients, target_gradients);
    }
  }
}

TEST_CASE("classifier: a NaN or infinite logit makes the loss of its own row NaN, and of no other") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{5, 100, 128};
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const double bad : {not_a_number, std::numeric_limits<double>::infinity()})
      for (const bool at_target : {true, false})
        for (const bool backward : {true, false}) {
          INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", " << bad
                         << (at_target ? " at the target" : " beside the target"));
          Batch batch = random_batch(rng, dtype, s, 2);
          batch.targets[2] = 40;
          batch.logits[at(2, at_target ? 40 : 41, s)] = bad;
          const Result got = run(*device, batch, backward);
          for (std::size_t n = 0; n < 5; ++n) CHECK(std::isnan(got.losses[n]) == (n == 2));
        }
  }
}

TEST_CASE("classifier: without backward the logits stay as they are, bit for bit") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.rows << ", V "
                     << s.vocab << ", V_p " << s.padded);
      Batch batch = random_batch(rng, dtype, s, 2);
      batch.targets.back() = -1;
      const auto logits = Operand::of(*device, batch.logits, {s.rows, s.padded}, "logits", dtype);
      const auto targets = Operand::of(*device, batch.targets, {s.rows}, "targets", DType::i32);
      const Operand row_losses(*device, DType::f32, {s.rows}, "losses");
      std::vector<unsigned char> before(logits.tensor().bytes()), after(before.size());
      device->download(before.data(), logits.tensor().data, logits.tensor().bytes());
      device->run(CrossEntropy{logits, row_losses, targets, {}, 0.5f, s.vocab, false});
      device->download(after.data(), logits.tensor().data, logits.tensor().bytes());
      CHECK(before == after);
    }
  }
}

TEST_CASE("classifier: the same bits in every order of the work") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : {Shape{5, 5003, 5056}, Shape{3, 999, 1001}}) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", V_p " << s.padded);
      const Batch batch = random_batch(rng, dtype, s, 2);
      check_schedules(name, [&] {
        Result result = run(*device, batch, true);
        result.losses.insert(result.losses.end(), result.logits.begin(), result.logits.end());
        return result.losses;
      });
    }
  }
}

TEST_CASE("classifier: logits that do not start on 16 bytes match float64") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{5, 61, 64};
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    const Batch batch = random_batch(rng, dtype, s, 2);
    Values shifted = batch.logits;
    shifted.insert(shifted.begin(), 7);
    const auto memory = Operand::of(*device, shifted, {s.rows * s.padded + 1}, "memory", dtype);
    const Tensor logits = memory.tensor().slice(0, 1, s.rows * s.padded).reshape({s.rows, s.padded});
    const auto targets = Operand::of(*device, batch.targets, {s.rows}, "targets", DType::i32);
    const Operand row_losses(*device, DType::f32, {s.rows}, "losses");
    device->run(CrossEntropy{logits, row_losses, targets, {}, 1, s.vocab, true});
    CHECK_FP32(row_losses.values(), losses(batch));
    CHECK_MATCHES(dtype, values_of(*device, logits), gradient(batch));
    CHECK(memory.values()[0] == 7);
  }
}

TEST_CASE("classifier: logits of -infinity take no part") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{3, 9000, 9000};
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    Batch batch = random_batch(rng, dtype, s, 2);
    for (std::size_t i = 0; i < batch.logits.size(); ++i)
      if (i % 9000 < 8990) batch.logits[i] = -std::numeric_limits<double>::infinity();
    batch.targets = {8995, 8990, 8999};
    check_against_float64(*device, batch);
  }
}

TEST_CASE(
    "classifier: a GPU gives a target outside the vocabulary a loss of NaN, and the other rows theirs") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    if (name == "cpu") continue;  // refuses it
    const auto device = open_tested(name);
    for (const double bad : {17.0, 24.0, 2147483647.0}) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", target " << bad);
      Batch good = random_batch(rng, dtype, {3, 17, 24}, 2);
      for (double& logit : good.logits)
        if (std::isnan(logit))
          logit = 1;  // in the padding: whoever took it for the target's would get a finite loss
      Batch batch = good;
      batch.targets[2] = bad;
      const Result got = run(*device, batch, true);
      CHECK(std::isnan(got.losses[2]));
      const Values want = losses(good);
      CHECK_FP32(Values(got.losses.begin(), got.losses.begin() + 2), Values(want.begin(), want.begin() + 2));
    }
  }
}

TEST_CASE("classifier: the float64 gradient is the derivative of the weighted float64 losses") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  Batch batch = random_batch(rng, DType::f32, {3, 5, 7}, 2);
  batch.targets[1] = -1;
  batch.weights = {0.5, 2, 1.5};
  batch.weight = 0.25;
  const auto objective = [&] {
    const Values rows = losses(batch);
    double sum = 0;
    for (std::size_t n = 0; n < rows.size(); ++n) sum += batch.weight_of(n) * rows[n];
    return sum;
  };
  const Values analytic = gradient(batch);
  INFO("seed " << seed);
  for (std::size_t i = 0; i < analytic.size(); ++i) {
    const double value = batch.logits[i], step = 1e-5;
    batch.logits[i] = value + step;
    const double above = objective();
    batch.logits[i] = value - step;
    const double below = objective();
    batch.logits[i] = value;
    CHECK(analytic[i] == Approx((above - below) / (2 * step)).epsilon(1e-6).margin(1e-9));
  }
}

TEST_CASE("classifier: the CPU refuses a target outside the vocabulary, names it and leaves the logits") {
  const auto device = open_tested("cpu");
  const Values values(16, 0.5);
  const auto logits = Operand::of(*device, values, {2, 8}, "logits");
  const Operand row_losses(*device, DType::f32, {2}, "losses");
  for (const double bad : {-2.0, 5.0, 2147483647.0}) {  // 5 is in the padding
    const auto targets = Operand::of(*device, {4, bad}, {2}, "targets", DType::i32);
    const CrossEntropy op{logits, row_losses, targets, {}, 1, 5, true};
    CHECK_THROWS_AS(device->run(op), std::out_of_range);
    CHECK_THROWS_WITH(device->run(op),
                      ContainsSubstring("targets[1] = " + std::to_string(static_cast<std::int64_t>(bad))));
  }
  CHECK(logits.values() == values);
}
