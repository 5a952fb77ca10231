#include <cmath>
#include <vector>

#include "test/catch.h"
#include "test/operand.h"

using namespace goat;
using namespace goat::test;

namespace {

using Values = std::vector<double>;

struct Oracle {
  Values value;
  Values terms;  // sums of the absolute values of the terms of `value`
};

std::size_t at(std::int64_t row, std::int64_t column, std::int64_t columns) { return static_cast<std::size_t>(row * columns + column); }

// start + the product of left(i, k) and right(k, j), [rows, columns].
template <class Left, class Right>
Oracle add_product(const Values& start, std::int64_t rows, std::int64_t columns, std::int64_t depth, Left left, Right right) {
  Oracle sum{start, start};
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      double& value = sum.value[at(i, j, columns)];
      double& terms = sum.terms[at(i, j, columns)];
      terms = std::abs(value);
      for (std::int64_t k = 0; k < depth; ++k) {
        value += left(i, k) * right(k, j);
        terms += std::abs(left(i, k) * right(k, j));
      }
    }
  return sum;
}

struct Shape {
  std::int64_t tokens, in, out;
};

Oracle forward(const Shape& s, const Values& x, const Values& weight, const Values& bias) {
  Values start(static_cast<std::size_t>(s.tokens * s.out), 0.0);
  for (std::size_t i = 0; i < start.size() && !bias.empty(); ++i) start[i] = bias[i % bias.size()];
  return add_product(
      start, s.tokens, s.out, s.in, [&](auto n, auto i) { return x[at(n, i, s.in)]; }, [&](auto i, auto o) { return weight[at(o, i, s.in)]; });
}

Oracle backward_input(const Shape& s, const Values& dout, const Values& weight) {
  return add_product(
      Values(static_cast<std::size_t>(s.tokens * s.in), 0.0), s.tokens, s.in, s.out, [&](auto n, auto o) { return dout[at(n, o, s.out)]; },
      [&](auto o, auto i) { return weight[at(o, i, s.in)]; });
}

Oracle backward_weight(const Shape& s, const Values& start, const Values& dout, const Values& x) {
  return add_product(
      start, s.out, s.in, s.tokens, [&](auto o, auto n) { return dout[at(n, o, s.out)]; }, [&](auto n, auto i) { return x[at(n, i, s.in)]; });
}

Oracle backward_bias(const Shape& s, const Values& start, const Values& dout) {
  return add_product(
      start, 1, s.out, s.tokens, [](auto, auto) { return 1.0; }, [&](auto n, auto o) { return dout[at(n, o, s.out)]; });
}

// Every combination of odd sizes, and one of a model's.
std::vector<Shape> shapes() {
  std::vector<Shape> all{{64, 96, 384}};
  for (const std::int64_t tokens : {1, 3, 17, 65, 130})
    for (const std::int64_t in : {1, 3, 17, 65, 130})
      for (const std::int64_t out : {1, 3, 17, 65, 130}) all.push_back({tokens, in, out});
  return all;
}

}  // namespace

TEST_CASE("linear forward: matches float64 at odd shapes, with and without bias") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& name : device_names()) {
    const auto device = open_device(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", seed " << seed << ", N " << s.tokens << ", I " << s.in << ", O " << s.out);
      const auto x = Operand::normal(*device, rng, {s.tokens, s.in}, "x");
      const auto weight = Operand::normal(*device, rng, {s.out, s.in}, "weight");
      const auto bias = Operand::normal(*device, rng, {s.out}, "bias");
      const Operand with(*device, DType::f32, {s.tokens, s.out}, "out"), without(*device, DType::f32, {s.tokens, s.out}, "out");
      device->run(LinearForward{with, x, weight, bias});
      device->run(LinearForward{without, x, weight, {}});
      const Oracle want_with = forward(s, x.values(), weight.values(), bias.values()), want_without = forward(s, x.values(), weight.values(), {});
      CHECK_FP32(with.values(), want_with.value, want_with.terms);
      CHECK_FP32(without.values(), want_without.value, want_without.terms);
    }
  }
}

TEST_CASE("linear backward: the input's gradient matches float64 at odd shapes") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& name : device_names()) {
    const auto device = open_device(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", seed " << seed << ", N " << s.tokens << ", I " << s.in << ", O " << s.out);
      const auto dout = Operand::normal(*device, rng, {s.tokens, s.out}, "dout");
      const auto weight = Operand::normal(*device, rng, {s.out, s.in}, "weight");
      const Operand dx(*device, DType::f32, {s.tokens, s.in}, "dx");
      device->run(LinearBackwardInput{dx, dout, weight});
      const Oracle want = backward_input(s, dout.values(), weight.values());
      CHECK_FP32(dx.values(), want.value, want.terms);
    }
  }
}

TEST_CASE("linear backward: weight and bias gradients add to what is there and match float64 at odd shapes") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& name : device_names()) {
    const auto device = open_device(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", seed " << seed << ", N " << s.tokens << ", I " << s.in << ", O " << s.out);
      const auto dout = Operand::normal(*device, rng, {s.tokens, s.out}, "dout");
      const auto x = Operand::normal(*device, rng, {s.tokens, s.in}, "x");
      const auto dweight = Operand::normal(*device, rng, {s.out, s.in}, "dweight", 3);
      const auto dbias = Operand::normal(*device, rng, {s.out}, "dbias", 3);
      const auto alone = Operand::of(*device, dweight.values(), {s.out, s.in}, "dweight");
      const Oracle want_weight = backward_weight(s, dweight.values(), dout.values(), x.values());
      const Oracle want_bias = backward_bias(s, dbias.values(), dout.values());
      device->run(LinearBackwardWeight{dweight, dbias, dout, x});
      device->run(LinearBackwardWeight{alone, {}, dout, x});
      CHECK_FP32(dweight.values(), want_weight.value, want_weight.terms);
      CHECK_FP32(dbias.values(), want_bias.value, want_bias.terms);
      CHECK_FP32(alone.values(), want_weight.value, want_weight.terms);
    }
  }
}

TEST_CASE("linear backward: the bias gradient of a long micro-batch keeps its accuracy") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{100003, 1, 3};
  for (const auto& name : device_names()) {
    const auto device = open_device(name);
    INFO("device " << name << ", seed " << seed);
    auto dout = Operand::normal(*device, rng, {s.tokens, s.out}, "dout");
    Values near_one = dout.values();  // an fp32 running sum of these rounds the same way every time
    for (double& value : near_one) value = 1 + 1e-3 * std::abs(value);
    dout.set(near_one);
    const auto x = Operand::normal(*device, rng, {s.tokens, s.in}, "x");
    const auto dweight = Operand::zeros(*device, {s.out, s.in}, "dweight");
    const auto dbias = Operand::zeros(*device, {s.out}, "dbias");
    device->run(LinearBackwardWeight{dweight, dbias, dout, x});
    CHECK_FP32(dbias.values(), backward_bias(s, Values(3, 0.0), dout.values()).value);
  }
}

TEST_CASE("linear: repeats bit for bit") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const std::int64_t N = 257, I = 384, O = 1153;
  for (const auto& name : device_names()) {
    const auto device = open_device(name);
    INFO("device " << name << ", seed " << seed);
    const auto x = Operand::normal(*device, rng, {N, I}, "x");
    const auto weight = Operand::normal(*device, rng, {O, I}, "weight");
    const auto bias = Operand::normal(*device, rng, {O}, "bias");
    const auto dout = Operand::normal(*device, rng, {N, O}, "dout");
    std::vector<Values> first;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Operand out(*device, DType::f32, {N, O}, "out"), dx(*device, DType::f32, {N, I}, "dx");
      const auto dweight = Operand::zeros(*device, {O, I}, "dweight");
      const auto dbias = Operand::zeros(*device, {O}, "dbias");
      device->run(LinearForward{out, x, weight, bias});
      device->run(LinearBackwardInput{dx, dout, weight});
      device->run(LinearBackwardWeight{dweight, dbias, dout, x});
      const std::vector<Values> results{out.values(), dx.values(), dweight.values(), dbias.values()};
      if (repeat == 0) first = results;
      CHECK(results == first);
    }
  }
}

TEST_CASE("linear: the float64 gradients are the derivatives of the float64 forward") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  std::normal_distribution<double> normal;
  const Shape s{3, 4, 5};
  const auto draw = [&](std::int64_t count) {
    Values values(static_cast<std::size_t>(count));
    for (double& value : values) value = normal(rng);
    return values;
  };
  Values x = draw(s.tokens * s.in), weight = draw(s.out * s.in), bias = draw(s.out);
  const Values dout = draw(s.tokens * s.out);
  const auto objective = [&] {
    const Values out = forward(s, x, weight, bias).value;
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  const auto check_derivative = [&](Values& parameter, const Values& gradient) {
    for (std::size_t i = 0; i < parameter.size(); ++i) {
      const double value = parameter[i], step = 1e-3;
      parameter[i] = value + step;
      const double above = objective();
      parameter[i] = value - step;
      const double below = objective();
      parameter[i] = value;
      CHECK(gradient[i] == Approx((above - below) / (2 * step)).margin(1e-9));
    }
  };
  INFO("seed " << seed);
  check_derivative(x, backward_input(s, dout, weight).value);
  check_derivative(weight, backward_weight(s, Values(weight.size(), 0.0), dout, x).value);
  check_derivative(bias, backward_bias(s, Values(bias.size(), 0.0), dout).value);
}
