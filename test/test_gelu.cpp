// GELU (tanh form) against a float64 oracle.
#include <cmath>
#include <limits>

#include "test/catch.h"
#include "test/gelu_oracle.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using goat::DType;
using goat::GeluBackward;
using goat::GeluForward;
using goat::test::Operand;
using goat::test::Rng;

namespace {
using namespace goat::test::gelu_oracle;
using Values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("gelu: the derivative of the oracle is its numerical derivative") {
  for (int quarter = -24; quarter <= 24; ++quarter) {
    const double x = quarter / 4.0;
    CHECK(gelu_derivative(x) == Approx((gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5).epsilon(1e-6).margin(1e-9));
  }
}

TEST_CASE("gelu: forward and backward match float64 at odd sizes and small and large arguments") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const std::int64_t n : {0, 1, 7, 64, 8191, 3 * 8192 + 5}) {
      for (const double scale : {1e-3, 1.0, 10.0}) {
        INFO("n = " << n << ", scale " << scale);
        const auto x = Operand::normal(*device, rng, {n}, "x", scale, dtype),
                   dout = Operand::normal(*device, rng, {n}, "dout", 1, dtype);
        const Operand out(*device, dtype, {n}, "out"), dx(*device, dtype, {n}, "dx");
        device->run(GeluForward{out, x});
        device->run(GeluBackward{dx, dout, x});
        const Values dx_terms = product(map(std::abs, dout.values()), map(gelu_derivative_terms, x.values()));
        CHECK_MATCHES(dtype, out.values(), map(gelu, x.values()), map(gelu_terms, x.values()));
        CHECK_MATCHES(dtype, dx.values(), product(dout.values(), map(gelu_derivative, x.values())), dx_terms);
      }
    }
  }
}

TEST_CASE("gelu forward: the left tail keeps its relative accuracy") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    Values points;
    for (int step = -6 * 64; step < 0; ++step) points.push_back(step / 64.0);
    const auto n = static_cast<std::int64_t>(points.size());
    const auto x = Operand::of(*device, points, {n}, "x");
    const Operand out(*device, DType::f32, {n}, "out");
    device->run(GeluForward{out, x});
    const Values got = out.values();
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double u = root * (points[i] + 0.044715 * std::pow(points[i], 3));
      CHECK(got[i] == Approx(points[i] / (1 + std::exp(-2 * u))).epsilon(2e-5));
    }
  }
}

TEST_CASE(
    "gelu: passes large arguments, shuts small ones off, keeps NaN, and has the right derivative there") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name << ", " << goat::name_of(dtype));
    const auto x = Operand::of(*device, {0, 25, 1e20, infinity, -25, -1e20, std::nan("")}, {7}, "x", dtype);
    const auto dout = Operand::of(*device, Values(7, 1), {7}, "dout", dtype);
    const Operand out(*device, dtype, {7}, "out"), dx(*device, dtype, {7}, "dx");
    device->run(GeluForward{out, x});
    device->run(GeluBackward{dx, dout, x});
    const Values got = out.values(), slope = dx.values();
    CHECK(got[0] == 0);
    for (const std::size_t i : {1, 2, 3}) CHECK(got[i] == x.values()[i]);
    for (const std::size_t i : {4, 5}) CHECK(got[i] == 0);
    CHECK(std::isnan(got[6]));
    CHECK(slope[0] == 0.5);
    for (const std::size_t i : {1, 2, 3}) CHECK(slope[i] == 1);
    for (const std::size_t i : {4, 5}) CHECK(slope[i] == 0);
    CHECK(std::isnan(slope[6]));
  }
}

TEST_CASE("gelu backward: dx may be written over dout, and any shape is one array") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const auto x = Operand::normal(*device, rng, {2, 3, 5, 7}, "x", 1, dtype),
               dout = Operand::normal(*device, rng, {2, 3, 5, 7}, "dout", 1, dtype);
    const Values want = product(dout.values(), map(gelu_derivative, x.values()));
    device->run(GeluBackward{dout, dout, x});
    CHECK_MATCHES(dtype, dout.values(), want);
  }
}

TEST_CASE("gelu: operands may start at any element") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const auto x = Operand::normal(*device, rng, {100}, "x", 1, dtype);
    const Operand out(*device, dtype, {64}, "out");
    const goat::Tensor part = x.tensor().slice(0, 3, 64);
    device->run(GeluForward{out, part});
    const Values values = goat::test::values_of(*device, part);
    CHECK_MATCHES(dtype, out.values(), map(gelu, values), map(gelu_terms, values));
  }
}

TEST_CASE("gelu: bitwise the same in any order of the threads") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    goat::test::check_schedules(name, [&, type = dtype] {
      Rng rng(seed);
      const auto x = Operand::normal(*device, rng, {3001}, "x", 1, type),
                 dout = Operand::normal(*device, rng, {3001}, "dout", 1, type);
      const Operand out(*device, type, {3001}, "out");
      device->run(GeluForward{out, x});
      device->run(GeluBackward{dout, dout, x});
      return goat::test::concatenated({out.values(), dout.values()});
    });
  }
}
