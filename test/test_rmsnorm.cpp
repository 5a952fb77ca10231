// RMSNorm with its residual connection against a float64 oracle.
#include <cmath>

#include "test/catch.h"
#include "test/norm_shapes.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

using goat::Device;
using goat::DType;
using goat::RmsNormBackward;
using goat::RmsNormForward;
using Shape = goat::test::NormShape;
using goat::test::absolute;
using goat::test::concatenated;
using goat::test::Operand;
using goat::test::plus;
using goat::test::Rng;

namespace {
using Values = std::vector<double>;
constexpr double eps = 1e-5f;

const std::vector<Shape> shapes = goat::test::norm_shapes();

struct Oracle {
  Values out, rstd;
};

Oracle forward_oracle(const Values& sum, const Values& weight) {
  const std::size_t width = weight.size(), rows = sum.size() / width;
  Oracle result{Values(sum.size()), Values(rows)};
  for (std::size_t n = 0; n < rows; ++n) {
    double square = 0;
    for (std::size_t c = 0; c < width; ++c)
      square += sum[n * width + c] * sum[n * width + c] / static_cast<double>(width);
    result.rstd[n] = 1 / std::sqrt(square + eps);
    for (std::size_t c = 0; c < width; ++c)
      result.out[n * width + c] = sum[n * width + c] * result.rstd[n] * weight[c];
  }
  return result;
}

struct Gradients {
  Values dsum, dweight;
  Values dsum_terms, dweight_terms;  // sums of absolute values
};

Gradients backward_oracle(const Values& dout, const Values& sum, const Values& rstd, const Values& weight) {
  const std::size_t width = weight.size(), rows = sum.size() / width;
  Gradients d{Values(sum.size()), Values(width), Values(sum.size()), Values(width)};
  for (std::size_t n = 0; n < rows; ++n) {
    const auto y = [&](std::size_t c) { return sum[n * width + c] * rstd[n]; };
    double gy_mean = 0;
    for (std::size_t c = 0; c < width; ++c)
      gy_mean += dout[n * width + c] * weight[c] * y(c) / static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c) {
      const double g = dout[n * width + c] * weight[c];
      d.dsum[n * width + c] = rstd[n] * (g - y(c) * gy_mean);
      d.dsum_terms[n * width + c] = rstd[n] * (std::abs(g) + std::abs(y(c) * gy_mean));
      d.dweight[c] += dout[n * width + c] * y(c);
      d.dweight_terms[c] += std::abs(dout[n * width + c] * y(c));
    }
  }
  return d;
}

// The operands of a backward call at a shape; the accumulated outputs hold what an earlier call left.
struct BackwardCall {
  Operand dsum, dweight, dout, sum, rstd, weight;
  RmsNormBackward op() const { return {dsum, dweight, dout, sum, rstd, weight}; }
};

BackwardCall backward_call(Device& device, Rng& rng, Shape shape, DType dtype) {
  const auto [N, C] = shape;
  BackwardCall call{Operand::normal(device, rng, {N, C}, "dsum", 1, dtype),
                    Operand::normal(device, rng, {C}, "dweight"),
                    Operand::normal(device, rng, {N, C}, "dout", 1, dtype),
                    Operand::normal(device, rng, {N, C}, "sum", 3, dtype),
                    Operand(device, DType::f32, {N}, "rstd"),
                    Operand::normal(device, rng, {C}, "weight")};
  call.rstd.set(forward_oracle(call.sum.values(), call.weight.values()).rstd);
  return call;
}
}  // namespace

TEST_CASE("rmsnorm forward: matches float64 at odd shapes, with and without a residual") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const auto [N, C] : shapes) {
      INFO("N = " << N << ", C = " << C);
      const auto x = Operand::normal(*device, rng, {N, C}, "x", 2, dtype),
                 residual = Operand::normal(*device, rng, {N, C}, "residual", 1, dtype);
      const auto weight = Operand::normal(*device, rng, {C}, "weight");
      const Operand out(*device, dtype, {N, C}, "out"), sum(*device, dtype, {N, C}, "sum"),
          rstd(*device, DType::f32, {N}, "rstd");

      device->run(RmsNormForward{out, rstd, {}, x, {}, weight});
      const Oracle plain = forward_oracle(x.values(), weight.values());
      CHECK_MATCHES(dtype, out.values(), plain.out);
      CHECK_FP32(rstd.values(), plain.rstd);

      device->run(RmsNormForward{out, rstd, sum, x, residual, weight});
      const Values want_sum = goat::test::rounded_to(dtype, plus(x.values(), residual.values()));
      const Oracle with_residual = forward_oracle(want_sum, weight.values());
      CHECK(sum.values() == want_sum);
      CHECK_MATCHES(dtype, out.values(), with_residual.out);
      CHECK_FP32(rstd.values(), with_residual.rstd);
    }
  }
}

TEST_CASE("rmsnorm forward: a row of zeros gives zeros, and the scale of a row does not matter") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name << ", " << goat::name_of(dtype));
    const std::int64_t C = 24;
    const auto weight = Operand::of(*device, Values(C, 0.5), {C}, "weight");
    for (const double constant : {0.0, 1.0, 1024.0, 0x1p40}) {
      INFO("constant " << constant);
      const auto x = Operand::of(*device, Values(C, constant), {1, C}, "x", dtype);
      const Operand out(*device, dtype, {1, C}, "out"), rstd(*device, DType::f32, {1}, "rstd");
      device->run(RmsNormForward{out, rstd, {}, x, {}, weight});
      CHECK(rstd.values()[0] == Approx(1 / std::sqrt(constant * constant + eps)));
      for (const double value : out.values()) CHECK(value == Approx(constant == 0 ? 0 : 0.5).epsilon(1e-4));
    }
  }
}

TEST_CASE("rmsnorm forward: the sum may be written over x or over the residual") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const std::int64_t C : {131, 136}) {
      const std::int64_t N = 9;
      const auto x = Operand::normal(*device, rng, {N, C}, "x", 1, dtype),
                 residual = Operand::normal(*device, rng, {N, C}, "residual", 1, dtype);
      const auto weight = Operand::normal(*device, rng, {C}, "weight");
      const Values want_sum = goat::test::rounded_to(dtype, plus(x.values(), residual.values()));
      const Values want_out = forward_oracle(want_sum, weight.values()).out;
      for (const bool over_x : {true, false}) {
        INFO("C = " << C << ", over " << (over_x ? "x" : "residual"));
        const auto first = Operand::of(*device, x.values(), {N, C}, "x", dtype),
                   second = Operand::of(*device, residual.values(), {N, C}, "residual", dtype);
        const Operand& sum = over_x ? first : second;
        const Operand out(*device, dtype, {N, C}, "out"), rstd(*device, DType::f32, {N}, "rstd");
        device->run(RmsNormForward{out, rstd, sum, first, second, weight});
        CHECK(sum.values() == want_sum);
        CHECK_MATCHES(dtype, out.values(), want_out);
        CHECK((over_x ? second : first).values() == (over_x ? residual : x).values());
      }
    }
  }
}

TEST_CASE("rmsnorm: a NaN stays in its row, and no tokens are no work") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name << ", " << goat::name_of(dtype));
    const auto x = Operand::of(*device, {1, 2, 3, 4, std::nan(""), 6, 7, 8, 10}, {3, 3}, "x", dtype);
    const auto weight = Operand::of(*device, {1, 1, 1}, {3}, "weight"),
               dweight = Operand::of(*device, {1, 2, 3}, {3}, "dweight");
    const Operand out(*device, dtype, {3, 3}, "out"), rstd(*device, DType::f32, {3}, "rstd");
    device->run(RmsNormForward{out, rstd, {}, x, {}, weight});
    const Values got = out.values();
    for (const std::size_t i : {0, 1, 2, 6, 7, 8}) CHECK(std::isfinite(got[i]));
    for (const std::size_t i : {3, 4, 5}) CHECK(std::isnan(got[i]));

    const Operand none(*device, dtype, {0, 3}, "none"), no_rstd(*device, DType::f32, {0}, "no_rstd");
    device->run(RmsNormForward{none, no_rstd, {}, none, {}, weight});
    device->run(RmsNormBackward{none, dweight, none, none, no_rstd, weight});
    CHECK(none.values().empty());
    CHECK(dweight.values() == Values{1, 2, 3});
  }
}

TEST_CASE("rmsnorm backward: the oracle is the numerical derivative of the forward oracle") {
  const auto seed = goat::test::fresh_seed();
  INFO("GOAT_TEST_SEED=" << seed);
  Rng rng(seed);
  std::normal_distribution<double> normal;
  Values sum(3 * 5), dout(3 * 5), weight(5);
  for (Values* values : {&sum, &dout, &weight})
    for (double& value : *values) value = normal(rng);
  const Gradients got = backward_oracle(dout, sum, forward_oracle(sum, weight).rstd, weight);
  const auto objective = [&] {
    const Values out = forward_oracle(sum, weight).out;
    double total = 0;
    for (std::size_t i = 0; i < out.size(); ++i) total += dout[i] * out[i];
    return total;
  };
  const auto check_derivative = [&](Values& input, const Values& gradient) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double step = 1e-5, kept = input[i];
      input[i] = kept + step;
      const double above = objective();
      input[i] = kept - step;
      const double below = objective();
      input[i] = kept;
      CHECK(gradient[i] == Approx((above - below) / (2 * step)).epsilon(1e-6).margin(1e-7));
    }
  };
  check_derivative(sum, got.dsum);
  check_derivative(weight, got.dweight);
}

TEST_CASE("rmsnorm backward: matches float64 at odd shapes and adds to what is there") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    std::vector<Shape> all = shapes;
    all.insert(all.end(), {{goat::test::reduced() ? 300 : 5000, 33},
                           {2100, 24},
                           {60, 1032}});  // several rows in each block of partial sums
    for (const auto [N, C] : all) {
      INFO("N = " << N << ", C = " << C);
      const BackwardCall call = backward_call(*device, rng, {N, C}, dtype);
      const Values dsum = call.dsum.values(), dweight = call.dweight.values();
      device->run(call.op());
      const Gradients want =
          backward_oracle(call.dout.values(), call.sum.values(), call.rstd.values(), call.weight.values());
      CHECK_MATCHES(dtype, call.dsum.values(), plus(dsum, want.dsum), plus(absolute(dsum), want.dsum_terms));
      CHECK_FP32(call.dweight.values(), plus(dweight, want.dweight),
                 plus(absolute(dweight), want.dweight_terms));
    }
  }
}

TEST_CASE("rmsnorm: bitwise the same in any order of the threads") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    const std::int64_t rows = goat::test::reduced() ? 77 : 777;
    for (const Shape shape : {Shape{rows, 65}, Shape{rows, 64}, Shape{9, 1032}}) {
      INFO("N = " << shape.rows << ", C = " << shape.width);
      goat::test::check_schedules(name, [&, type = dtype] {
        Rng rng(seed);
        const BackwardCall call = backward_call(*device, rng, shape, type);
        device->run(call.op());
        const Operand out(*device, type, {shape.rows, shape.width}, "out");
        device->run(RmsNormForward{out, call.rstd, call.sum, call.dout, call.sum, call.weight});
        return concatenated(
            {out.values(), call.sum.values(), call.rstd.values(), call.dsum.values(), call.dweight.values()});
      });
    }
  }
}
