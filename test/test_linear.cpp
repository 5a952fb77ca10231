#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "test/catch.h"
#include "test/linear_oracle.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using namespace goat;
using namespace goat::test;

namespace {

using Values = std::vector<double>;
using namespace goat::test::linear_oracle;

// Every combination of odd sizes, one of a model's, and one with more rows than the cpu gives sgemm at once.
std::vector<Shape> shapes() {
  std::vector<Shape> all{{64, 96, 384}, {1100, 3, 17}};
  for (const std::int64_t tokens : {1, 3, 17, 65, 130})
    for (const std::int64_t in : {1, 3, 17, 65, 130})
      for (const std::int64_t out : {1, 3, 17, 65, 130}) all.push_back({tokens, in, out});
  return all;
}

// out, dx, dweight and dbias, one after the other; the gradients start from zero.
Values forward_and_backward(Device& device, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& dout) {
  const DType dtype = x.dtype;
  const std::int64_t N = x.shape[0], I = x.shape[1], O = weight.shape[0];
  const Operand out(device, dtype, {N, O}, "out"), dx(device, dtype, {N, I}, "dx");
  const auto dweight = Operand::zeros(device, {O, I}, "dweight"),
             dbias = Operand::zeros(device, {O}, "dbias");
  device.run(LinearForward{out, x, weight, bias});
  device.run(LinearBackwardInput{dx, dout, weight});
  device.run(LinearBackwardWeight{dweight, dbias, dout, x});
  Values all;
  for (const Operand* operand : {&out, &dx, &dweight, &dbias}) {
    const Values values = operand->values();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace

TEST_CASE("linear forward: matches float64 at odd shapes, with and without bias") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.tokens << ", I "
                     << s.in << ", O " << s.out);
      const auto x = Operand::normal(*device, rng, {s.tokens, s.in}, "x", 1, dtype);
      const auto weight = Operand::normal(*device, rng, {s.out, s.in}, "weight", 1, dtype);
      const auto bias = Operand::normal(*device, rng, {s.out}, "bias", 1, dtype);
      const Operand with(*device, dtype, {s.tokens, s.out}, "out"),
          without(*device, dtype, {s.tokens, s.out}, "out");
      device->run(LinearForward{with, x, weight, bias});
      device->run(LinearForward{without, x, weight, {}});
      const Oracle want_with = forward(s, x.values(), weight.values(), bias.values()),
                   want_without = forward(s, x.values(), weight.values(), {});
      CHECK_MATCHES(dtype, with.values(), want_with.value, want_with.terms);
      CHECK_MATCHES(dtype, without.values(), want_without.value, want_without.terms);
    }
  }
}

TEST_CASE("linear forward: few rows match float64 at odd widths, with and without bias") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const std::int64_t tokens : {1, 2, 3, 4, 5, 8, 9})
      for (const auto& [in, columns] : {std::pair<std::int64_t, std::int64_t>{15, 4},
                                        {16, 5},
                                        {31, 18},
                                        {33, 7},
                                        {128, 131},
                                        {143, 129}}) {
        INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << tokens << ", I "
                       << in << ", O " << columns);
        const Shape s{tokens, in, columns};
        const auto x = Operand::normal(*device, rng, {tokens, in}, "x", 1, dtype),
                   weight = Operand::normal(*device, rng, {columns, in}, "weight", 1, dtype),
                   bias = Operand::normal(*device, rng, {columns}, "bias", 1, dtype);
        for (const bool biased : {true, false}) {
          const Operand out(*device, dtype, {tokens, columns}, "out");
          device->run(LinearForward{out, x, weight, biased ? bias.tensor() : Tensor{}});
          const Oracle want = forward(s, x.values(), weight.values(), biased ? bias.values() : Values{});
          CHECK_MATCHES(dtype, out.values(), want.value, want.terms);
        }
      }
  }
}

TEST_CASE(
    "linear forward on the cpu: a row among few has the same bits alone and for every number of threads") {
  const auto device = open_tested("cpu");
  Rng rng(fresh_seed());
  for (const auto& [in, columns] : {std::pair<std::int64_t, std::int64_t>{37, 5}, {150, 203}}) {
    const auto x = Operand::normal(*device, rng, {8, in}, "x"),
               weight = Operand::normal(*device, rng, {columns, in}, "weight"),
               bias = Operand::normal(*device, rng, {columns}, "bias");
    const auto rows = [&](std::int64_t first, std::int64_t count) {
      const Operand out(*device, DType::f32, {count, columns}, "out");
      device->run(LinearForward{out, x.tensor().slice(0, first, count), weight, bias});
      return out.values();
    };
    const Values together = rows(0, 8);
    for (std::int64_t row = 0; row < 8; ++row)
      CHECK(rows(row, 1) == Values(together.begin() + row * columns, together.begin() + (row + 1) * columns));
    for (const std::int64_t column : {0, 1, 4}) {  // that of one row of the weight alone
      const Operand out(*device, DType::f32, {1, 1}, "out");
      device->run(LinearForward{out, x.tensor().slice(0, 0, 1), weight.tensor().slice(0, column, 1),
                                bias.tensor().slice(0, column, 1)});
      CHECK(out.values()[0] == together[static_cast<std::size_t>(column)]);
    }
    check_schedules("cpu", [&] { return rows(1, 3); });
  }
}

TEST_CASE("linear backward: the input's gradient matches float64 at odd shapes") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.tokens << ", I "
                     << s.in << ", O " << s.out);
      const auto dout = Operand::normal(*device, rng, {s.tokens, s.out}, "dout", 1, dtype);
      const auto weight = Operand::normal(*device, rng, {s.out, s.in}, "weight", 1, dtype);
      const Operand dx(*device, dtype, {s.tokens, s.in}, "dx");
      device->run(LinearBackwardInput{dx, dout, weight});
      const Oracle want = backward_input(s, dout.values(), weight.values());
      CHECK_MATCHES(dtype, dx.values(), want.value, want.terms);
    }
  }
}

TEST_CASE("linear backward: weight and bias gradients add to what is there and match float64 at odd shapes") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.tokens << ", I "
                     << s.in << ", O " << s.out);
      const auto dout = Operand::normal(*device, rng, {s.tokens, s.out}, "dout", 1, dtype);
      const auto x = Operand::normal(*device, rng, {s.tokens, s.in}, "x", 1, dtype);
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
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    auto dout = Operand::normal(*device, rng, {s.tokens, s.out}, "dout", 1, dtype);
    Values near_one = dout.values();  // an fp32 running sum of these rounds the same way every time
    for (double& value : near_one) value = 1 + 1e-3 * std::abs(value);
    dout.set(near_one);
    const auto x = Operand::normal(*device, rng, {s.tokens, s.in}, "x", 1, dtype);
    const auto dweight = Operand::zeros(*device, {s.out, s.in}, "dweight");
    const auto dbias = Operand::zeros(*device, {s.out}, "dbias");
    device->run(LinearBackwardWeight{dweight, dbias, dout, x});
    CHECK_FP32(dbias.values(), backward_bias(s, Values(3, 0.0), dout.values()).value);
  }
}

TEST_CASE("linear: the same bits in every order of the work") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const std::int64_t N = 600, I = 40;
  for (const auto& [name, dtype] : variants()) {
    if (name == "cpu") continue;  // oneDNN's sums depend on the number of threads
    const auto device = open_tested(name);
    for (const std::int64_t O : {136, 77}) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", O " << O);
      const auto x = Operand::normal(*device, rng, {N, I}, "x", 1, dtype),
                 weight = Operand::normal(*device, rng, {O, I}, "weight", 1, dtype),
                 bias = Operand::normal(*device, rng, {O}, "bias", 1, dtype),
                 dout = Operand::normal(*device, rng, {N, O}, "dout", 1, dtype);
      check_schedules(name, [&] { return forward_and_backward(*device, x, weight, bias, dout); });
    }
  }
}

TEST_CASE("linear: repeats bit for bit") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const std::int64_t N = 257, I = 384, O = 1153;
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    const auto x = Operand::normal(*device, rng, {N, I}, "x", 1, dtype),
               weight = Operand::normal(*device, rng, {O, I}, "weight", 1, dtype),
               bias = Operand::normal(*device, rng, {O}, "bias", 1, dtype),
               dout = Operand::normal(*device, rng, {N, O}, "dout", 1, dtype);
    const Values first = forward_and_backward(*device, x, weight, bias, dout);
    for (int repeat = 0; repeat < 2; ++repeat)
      CHECK(forward_and_backward(*device, x, weight, bias, dout) == first);
  }
}

// A GPU's matrix library wants aligned memory for its fastest algorithms, and for a bias.
TEST_CASE("linear: operands that do not start on 16 bytes match float64") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{24, 32, 40};
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    const auto shifted = [](const Operand& memory, std::int64_t rows, std::int64_t columns) {
      return memory.tensor().slice(0, 1, rows * columns).reshape({rows, columns});
    };
    const auto x_memory = Operand::normal(*device, rng, {s.tokens * s.in + 1}, "x", 1, dtype),
               weight_memory = Operand::normal(*device, rng, {s.out * s.in + 1}, "weight", 1, dtype),
               bias_memory = Operand::normal(*device, rng, {s.out + 1}, "bias", 1, dtype),
               dout_memory = Operand::normal(*device, rng, {s.tokens * s.out + 1}, "dout", 1, dtype),
               dweight_memory = Operand::normal(*device, rng, {s.out * s.in + 1}, "dweight"),
               dbias_memory = Operand::normal(*device, rng, {s.out + 1}, "dbias");
    const Operand out_memory(*device, dtype, {s.tokens * s.out + 1}, "out"),
        dx_memory(*device, dtype, {s.tokens * s.in + 1}, "dx");
    const Tensor x = shifted(x_memory, s.tokens, s.in), weight = shifted(weight_memory, s.out, s.in),
                 bias = bias_memory.tensor().slice(0, 1, s.out), dout = shifted(dout_memory, s.tokens, s.out),
                 dweight = shifted(dweight_memory, s.out, s.in),
                 dbias = dbias_memory.tensor().slice(0, 1, s.out), out = shifted(out_memory, s.tokens, s.out),
                 dx = shifted(dx_memory, s.tokens, s.in);
    const auto values = [&](const Tensor& view) { return values_of(*device, view); };
    const Oracle want_out = forward(s, values(x), values(weight), values(bias)),
                 want_dx = backward_input(s, values(dout), values(weight)),
                 want_dweight = backward_weight(s, values(dweight), values(dout), values(x)),
                 want_dbias = backward_bias(s, values(dbias), values(dout));
    device->run(LinearForward{out, x, weight, bias});
    device->run(LinearBackwardInput{dx, dout, weight});
    device->run(LinearBackwardWeight{dweight, dbias, dout, x});
    CHECK_MATCHES(dtype, values(out), want_out.value, want_out.terms);
    CHECK_MATCHES(dtype, values(dx), want_dx.value, want_dx.terms);
    CHECK_FP32(values(dweight), want_dweight.value, want_dweight.terms);
    CHECK_FP32(values(dbias), want_dbias.value, want_dbias.terms);
    for (const Operand* memory : {&out_memory, &dx_memory, &dweight_memory, &dbias_memory})
      memory->values();  // throws if the guards were touched
    CHECK(std::isnan(out_memory.values()[0]));
    CHECK(std::isnan(dx_memory.values()[0]));
  }
}

namespace {
// To 10 bits of mantissa, to nearest, ties away from zero.
double rounded_to_tf32(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // 11 bits with the leading one
  return std::ldexp(std::round(std::ldexp(fraction, 11)), exponent - 11);
}
Values rounded_by(Factors factors, Values values) {
  for (double& value : values)
    value = factors == Factors::tf32 ? rounded_to_tf32(value) : rounded_to(DType::bf16, value);
  return values;
}

struct Products {
  Oracle out, dx, dweight;
};
Products products_of(const Shape& s, const Values& x, const Values& weight, const Values& bias,
                     const Values& dout, const Values& start) {
  return {forward(s, x, weight, bias), backward_input(s, dout, weight), backward_weight(s, start, dout, x)};
}
}  // namespace

TEST_CASE(
    "linear: TF32 and bf16 products are those of rounded factors, and full fp32 where a device has no TF32") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{33, 64, 40};
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    const auto x = Operand::normal(*device, rng, {s.tokens, s.in}, "x", 1, dtype),
               weight = Operand::normal(*device, rng, {s.out, s.in}, "weight", 1, dtype),
               bias_memory = Operand::normal(*device, rng, {s.out + 1}, "bias", 1, dtype),
               dout = Operand::normal(*device, rng, {s.tokens, s.out}, "dout", 1, dtype),
               start = Operand::normal(*device, rng, {s.out, s.in}, "dweight");
    // Shift 1: a bias that the matrix library may not take.
    for (const auto& [factors, shift] :
         {std::pair(Factors::tf32, 0), {Factors::tf32, 1}, {Factors::bf16, 0}, {Factors::bf16, 1}}) {
      const Tensor bias = bias_memory.tensor().slice(0, shift, s.out);
      const auto run = [&, type = dtype](Factors chosen) {
        const Operand out(*device, type, {s.tokens, s.out}, "out"), dx(*device, type, {s.tokens, s.in}, "dx");
        const auto dweight = Operand::of(*device, start.values(), {s.out, s.in}, "dweight");
        device->run(LinearForward{out, x, weight, bias, chosen});
        device->run(LinearBackwardInput{dx, dout, weight, chosen});
        device->run(LinearBackwardWeight{dweight, {}, dout, x, chosen});
        return std::array<Values, 3>{out.values(), dx.values(), dweight.values()};
      };
      const std::array<Values, 3> full = run(Factors::as_stored), got = run(factors);
      if ((name == "cpu" && factors == Factors::tf32) || dtype == DType::bf16) {
        CHECK((got == full));
        continue;
      }
      const Values bias_values = values_of(*device, bias);
      const auto products = [&](auto round) {
        return products_of(s, round(x.values()), round(weight.values()), bias_values, round(dout.values()),
                           start.values());
      };
      const Products exact = products([](Values values) { return values; }),
                     rounded = products(
                         [&, to = factors](Values values) { return rounded_by(to, std::move(values)); });
      const Oracle* wants[] = {&exact.out, &exact.dx, &exact.dweight};
      const Oracle* roundeds[] = {&rounded.out, &rounded.dx, &rounded.dweight};
      for (std::size_t which = 0; which < 3; ++which) {
        INFO("product " << which << ", bias at " << shift
                        << (factors == Factors::bf16 ? ", bf16" : ", TF32"));
        if (name != "cuda") CHECK((got[which] != full[which]));  // a matrix library may decline
        // Each of two factors is cut by half an ulp or less: 2^-11 of itself, or 2^-9.
        const Oracle& want = *wants[which];
        std::size_t beyond = 0;
        for (std::size_t i = 0; i < want.value.size(); ++i)
          beyond += !(std::abs(got[which][i] - want.value[i]) <=
                      (factors == Factors::bf16 ? 0x1p-7 : 0x1p-9) * want.terms[i]);
        CHECK(beyond == 0);
        if (name != "cuda") CHECK_FP32(got[which], roundeds[which]->value, roundeds[which]->terms);
      }
    }
  }
}

TEST_CASE("linear: without tokens the gradients stay as they are") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    const Operand out(*device, dtype, {0, 8}, "out"), x(*device, dtype, {0, 3}, "x");
    const auto weight = Operand::normal(*device, rng, {8, 3}, "weight", 1, dtype),
               bias = Operand::normal(*device, rng, {8}, "bias", 1, dtype),
               dweight = Operand::normal(*device, rng, {8, 3}, "dweight"),
               dbias = Operand::normal(*device, rng, {8}, "dbias");
    const Values before = dweight.values(), bias_before = dbias.values();
    device->run(LinearForward{out, x, weight, bias});
    device->run(LinearBackwardInput{x, out, weight});
    device->run(LinearBackwardWeight{dweight, dbias, out, x});
    CHECK(dweight.values() == before);
    CHECK(dbias.values() == bias_before);
    CHECK(out.values().empty());
    CHECK(x.values().empty());
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
