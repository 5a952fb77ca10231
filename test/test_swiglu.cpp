// SwiGLU against a float64 oracle.
#include <cmath>
#include <limits>

#include "test/catch.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

using goat::DType;
using goat::SwigluBackward;
using goat::SwigluForward;
using goat::Tensor;
using goat::test::absolute;
using goat::test::concatenated;
using goat::test::Operand;
using goat::test::Rng;
using goat::test::values_of;

namespace {
using Values = std::vector<double>;

double logistic(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * logistic(x); }
double silu_derivative(double x) { return logistic(x) * (1 + x * logistic(-x)); }
double silu_derivative_terms(double x) {
  return logistic(x) * (1 + std::abs(x) * logistic(-x));
}  // the two cancel at x = -1.28

Values map(double (*function)(double), Values values) {
  for (double& value : values) value = function(value);
  return values;
}

Values product(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

Values dgate_of(const Values& dout, const Values& gate, const Values& up) {
  return product(product(dout, up), map(silu_derivative, gate));
}
Values dgate_terms_of(const Values& dout, const Values& gate, const Values& up) {
  return absolute(product(product(dout, up), map(silu_derivative_terms, gate)));
}
Values dup_of(const Values& dout, const Values& gate) { return product(dout, map(silu, gate)); }

struct Shape {
  std::int64_t rows, width;
};
const std::vector<Shape> shapes = {{0, 8},   {1, 1},   {3, 7},    {17, 64},
                                   {5, 129}, {2, 261}, {2, 2056}, {300, 24}};
}  // namespace

TEST_CASE("swiglu: the derivative of the oracle is its numerical derivative") {
  for (int quarter = -40; quarter <= 40; ++quarter) {
    const double x = quarter / 4.0;
    CHECK(silu_derivative(x) == Approx((silu(x + 1e-5) - silu(x - 1e-5)) / 2e-5).epsilon(1e-6).margin(1e-9));
  }
}

TEST_CASE("swiglu: forward and backward match float64 at odd shapes and small and large gates") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const auto [N, F] : shapes) {
      for (const double scale : {1e-3, 1.0, 20.0}) {
        INFO("N = " << N << ", F = " << F << ", scale " << scale);
        const auto gate = Operand::normal(*device, rng, {N, F}, "gate", scale, dtype),
                   up = Operand::normal(*device, rng, {N, F}, "up", 1, dtype);
        const auto dout = Operand::normal(*device, rng, {N, F}, "dout", 1, dtype);
        const Operand out(*device, dtype, {N, F}, "out"), dgate(*device, dtype, {N, F}, "dgate"),
            dup(*device, dtype, {N, F}, "dup");
        device->run(SwigluForward{out, gate, up});
        device->run(SwigluBackward{dgate, dup, dout, gate, up});
        const Values g = gate.values(), u = up.values(), d = dout.values();
        CHECK_MATCHES(dtype, out.values(), product(map(silu, g), u));
        CHECK_MATCHES(dtype, dgate.values(), dgate_of(d, g, u), dgate_terms_of(d, g, u));
        CHECK_MATCHES(dtype, dup.values(), dup_of(d, g));
      }
    }
  }
}

TEST_CASE("swiglu: gate and up may be the halves of one tensor, and the gradients may be written over them") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const auto [N, F] : shapes) {
      if (N == 0) continue;
      INFO("N = " << N << ", F = " << F);
      const auto both = Operand::normal(*device, rng, {N, 2 * F}, "gate and up", 1, dtype);
      const auto dout = Operand::normal(*device, rng, {N, F}, "dout", 1, dtype);
      const Tensor gate = both.tensor().slice(1, 0, F), up = both.tensor().slice(1, F, F);
      const Values g = values_of(*device, gate), u = values_of(*device, up), d = dout.values();
      const Operand out(*device, dtype, {N, F}, "out"),
          gradients(*device, dtype, {N, 2 * F}, "dgate and dup");
      device->run(SwigluForward{out, gate, up});
      CHECK_MATCHES(dtype, out.values(), product(map(silu, g), u));

      device->run(SwigluBackward{gradients.tensor().slice(1, 0, F), gradients.tensor().slice(1, F, F), dout,
                                 gate, up});
      CHECK_MATCHES(dtype, values_of(*device, gradients.tensor().slice(1, 0, F)), dgate_of(d, g, u),
                    dgate_terms_of(d, g, u));
      CHECK_MATCHES(dtype, values_of(*device, gradients.tensor().slice(1, F, F)), dup_of(d, g));
      CHECK(values_of(*device, gate) == g);

      device->run(SwigluBackward{gate, up, dout, gate, up});
      CHECK(both.values() == gradients.values());
    }
  }
}

TEST_CASE("swiglu: operands whose rows start at any element") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const std::int64_t N = 6, F = 32;
    for (const auto& [offset, stride] : {std::pair<std::int64_t, std::int64_t>{1, F + 8}, {0, F + 1}}) {
      INFO("offset " << offset << ", stride " << stride);
      const auto wide = Operand::normal(*device, rng, {N, stride}, "wide", 1, dtype),
                 up = Operand::normal(*device, rng, {N, F}, "up", 1, dtype);
      const Tensor gate = wide.tensor().slice(1, offset, F);
      const Operand out(*device, dtype, {N, F}, "out");
      device->run(SwigluForward{out, gate, up});
      CHECK_MATCHES(dtype, out.values(), product(map(silu, values_of(*device, gate)), up.values()));
    }
  }
}

TEST_CASE("swiglu: passes large gates, shuts small ones off, keeps NaN, and has the right derivative there") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name << ", " << goat::name_of(dtype));
    const auto gate = Operand::of(*device, {0, 100, 1e20, -200, -1e20, std::nan("")}, {1, 6}, "gate", dtype);
    const auto ones = Operand::of(*device, Values(6, 1), {1, 6}, "ones", dtype);
    const Operand out(*device, dtype, {1, 6}, "out"), dgate(*device, dtype, {1, 6}, "dgate"),
        dup(*device, dtype, {1, 6}, "dup");
    device->run(SwigluForward{out, gate, ones});
    device->run(SwigluBackward{dgate, dup, ones, gate, ones});
    const Values got = out.values(), slope = dgate.values();
    CHECK(got[0] == 0);
    for (const std::size_t i : {1, 2}) CHECK(got[i] == gate.values()[i]);
    for (const std::size_t i : {3, 4}) CHECK(got[i] == 0);
    CHECK(std::isnan(got[5]));
    CHECK(slope[0] == 0.5);
    for (const std::size_t i : {1, 2}) CHECK(slope[i] == 1);
    for (const std::size_t i : {3, 4}) CHECK(slope[i] == 0);
    CHECK(std::isnan(slope[5]));
    for (std::size_t i = 0; i < 5; ++i) CHECK(dup.values()[i] == got[i]);
  }
}

TEST_CASE("swiglu forward: the left tail keeps its relative accuracy") {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name);
    Values points;
    for (int step = -80 * 8; step < 0; ++step) points.push_back(step / 8.0);
    const auto n = static_cast<std::int64_t>(points.size());
    const auto gate = Operand::of(*device, points, {1, n}, "gate"),
               up = Operand::of(*device, Values(points.size(), 1), {1, n}, "up");
    const Operand out(*device, DType::f32, {1, n}, "out");
    device->run(SwigluForward{out, gate, up});
    const Values got = out.values();
    for (std::size_t i = 0; i < points.size(); ++i) CHECK(got[i] == Approx(silu(points[i])).epsilon(2e-5));
  }
}

TEST_CASE("swiglu: bitwise the same in any order of the threads") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    goat::test::check_schedules(name, [&, type = dtype] {
      Rng rng(seed);
      const auto both = Operand::normal(*device, rng, {37, 520}, "gate and up", 1, type),
                 dout = Operand::normal(*device, rng, {37, 260}, "dout", 1, type);
      const Tensor gate = both.tensor().slice(1, 0, 260), up = both.tensor().slice(1, 260, 260);
      const Operand out(*device, type, {37, 260}, "out");
      device->run(SwigluForward{out, gate, up});
      device->run(SwigluBackward{gate, up, dout, gate, up});
      return concatenated({out.values(), both.values()});
    });
  }
}
