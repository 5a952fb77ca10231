// LayerNorm with its residual connection against a float64 oracle.
#include <cmath>

#include "test/catch.h"
#include "test/norm_shapes.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

using goat::Device;
using goat::DType;
using goat::LayerNormBackward;
using goat::LayerNormForward;
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
  Values out, mean, rstd;
  Values mean_terms;  // mean absolute values: what cancels in the mean
};

Oracle forward_oracle(const Values& sum, const Values& weight, const Values& bias) {
  const std::size_t width = weight.size(), rows = sum.size() / width;
  Oracle result{Values(sum.size()), Values(rows), Values(rows), Values(rows)};
  for (std::size_t n = 0; n < rows; ++n) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < width; ++c) {
      mean += sum[n * width + c] / static_cast<double>(width);
      result.mean_terms[n] += std::abs(sum[n * width + c]) / static_cast<double>(width);
    }
    for (std::size_t c = 0; c < width; ++c)
      variance += std::pow(sum[n * width + c] - mean, 2) / static_cast<double>(width);
    result.mean[n] = mean;
    result.rstd[n] = 1 / std::sqrt(variance + eps);
    for (std::size_t c = 0; c < width; ++c)
      result.out[n * width + c] = (sum[n * width + c] - mean) * result.rstd[n] * weight[c] + bias[c];
  }
  return result;
}

struct Gradients {
  Values dsum, dweight, dbias;
  Values dsum_terms, dweight_terms, dbias_terms;  // sums of absolute values
};

Gradients backward_oracle(const Values& dout, const Values& sum, const Oracle& forward,
                          const Values& weight) {
  const std::size_t width = weight.size(), rows = sum.size() / width;
  Gradients d{Values(sum.size()), Values(width), Values(width),
              Values(sum.size()), Values(width), Values(width)};
  for (std::size_t n = 0; n < rows; ++n) {
    const auto y = [&](std::size_t c) { return (sum[n * width + c] - forward.mean[n]) * forward.rstd[n]; };
    double g_mean = 0, gy_mean = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const double g = dout[n * width + c] * weight[c];
      g_mean += g / static_cast<double>(width);
      gy_mean += g * y(c) / static_cast<double>(width);
    }
    for (std::size_t c = 0; c < width; ++c) {
      const double g = dout[n * width + c] * weight[c];
      d.dsum[n * width + c] = forward.rstd[n] * (g - g_mean - y(c) * gy_mean);
      d.dsum_terms[n * width + c] =
          forward.rstd[n] * (std::abs(g) + std::abs(g_mean) + std::abs(y(c) * gy_mean));
      d.dweight[c] += dout[n * width + c] * y(c);
      d.dweight_terms[c] += std::abs(dout[n * width + c] * y(c));
      d.dbias[c] += dout[n * width + c];
      d.dbias_terms[c] += std::abs(dout[n * width + c]);
    }
  }
  return d;
}

double inner(const Values& a, const Values& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

// The operands of a backward call at a shape; the accumulated outputs hold what an earlier call left.
struct BackwardCall {
  Operand dsum, dweight, dbias, dout, sum, mean, rstd, weight;
  LayerNormBackward op() const { return {dsum, dweight, dbias, dout, sum, mean, rstd, weight}; }
};

BackwardCall backward_call(Device& device, Rng& rng, Shape shape, DType dtype) {
  const auto [N, C] = shape;
  BackwardCall call{Operand::normal(device, rng, {N, C}, "dsum", 1, dtype),
                    Operand::normal(device, rng, {C}, "dweight"),
                    Operand::normal(device, rng, {C}, "dbias"),
                    Operand::normal(device, rng, {N, C}, "dout", 1, dtype),
                    Operand::normal(device, rng, {N, C}, "sum", 3, dtype),
                    Operand(device, DType::f32, {N}, "mean"),
                    Operand(device, DType::f32, {N}, "rstd"),
                    Operand::normal(device, rng, {C}, "weight")};
  const Oracle forward =
      forward_oracle(call.sum.values(), call.weight.values(), Values(static_cast<std::size_t>(C)));
  call.mean.set(forward.mean);
  call.rstd.set(forward.rstd);
  return call;
}
}  // namespace

TEST_CASE("layernorm forward: matches float64 at odd shapes, with and without a residual") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    for (const auto [N, C] : shapes) {
      INFO("N = " << N << ", C = " << C);
      const auto x = Operand::normal(*device, rng, {N, C}, "x", 2, dtype),
                 residual = Operand::normal(*device, rng, {N, C}, "residual", 1, dtype);
      const auto weight = Operand::normal(*device, rng, {C}, "weight"),
                 bias = Operand::normal(*device, rng, {C}, "bias");
      const Operand out(*device, dtype, {N, C}, "out"), sum(*device, dtype, {N, C}, "sum");
      const Operand mean(*device, DType::f32, {N}, "mean"), rstd(*device, DType::f32, {N}, "rstd");

      device->run(LayerNormForward{out, mean, rstd, {}, x, {}, weight, bias});
      const Oracle plain = forward_oracle(x.values(), weight.values(), bias.values());
      CHECK_MATCHES(dtype, out.values(), plain.out);
      CHECK_FP32(mean.values(), plain.mean, plain.mean_terms);
      CHECK_FP32(rstd.values(), plain.rstd);

      device->run(LayerNormForward{out, mean, rstd, sum, x, residual, weight, bias});
      const Values want_sum = goat::test::rounded_to(dtype, plus(x.values(), residual.values()));
      const Oracle with_residual = forward_oracle(want_sum, weight.values(), bias.values());
      CHECK(sum.values() == want_sum);
      CHECK_MATCHES(dtype, out.values(), with_residual.out);
      CHECK_FP32(mean.values(), with_residual.mean, with_residual.mean_terms);
      CHECK_FP32(rstd.values(), with_residual.rstd);
    }
  }
}

TEST_CASE(
    "layernorm forward: keeps its accuracy where the mean is a thousand or a million standard deviations") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const auto check = [&, type = dtype](std::int64_t C, double offset) {
      INFO("C = " << C << ", mean " << offset);
      auto x = Operand::normal(*device, rng, {7, C}, "x", 1, type);
      Values values = x.values();
      for (double& value : values) value += offset;
      x.set(values);
      const auto weight = Operand::normal(*device, rng, {C}, "weight"),
                 bias = Operand::normal(*device, rng, {C}, "bias");
      const Operand out(*device, type, {7, C}, "out"), mean(*device, DType::f32, {7}, "mean"),
          rstd(*device, DType::f32, {7}, "rstd");
      device->run(LayerNormForward{out, mean, rstd, {}, x, {}, weight, bias});
      const Oracle want = forward_oracle(x.values(), weight.values(), bias.values());
      CHECK_MATCHES(type, out.values(), want.out);
      CHECK_FP32(mean.values(), want.mean, want.mean_terms);
      CHECK_FP32(rstd.values(), want.rstd);
    };
    for (const std::int64_t C : {3, 129, 768}) {
      check(C, 1000);
      if (dtype == DType::f32)
        check(C, 1e6);  // an fp32 mean is off by some hundredths of a standard deviation; bf16 numbers there
                        // are 4096 apart
    }
  }
}

TEST_CASE("layernorm forward: a constant row gives the bias and a finite rstd, however large the constant") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name << ", " << goat::name_of(dtype));
    const std::int64_t C = 100;
    const auto bias = Operand::of(*device, Values(C, 0.25), {C}, "bias"),
               weight = Operand::of(*device, Values(C, 1), {C}, "weight");
    for (const double constant : {0.0, 1.0, 1234.567, 1e8}) {
      INFO("constant " << constant);
      const auto x = Operand::of(*device, Values(C, constant), {1, C}, "x", dtype);
      const Operand out(*device, dtype, {1, C}, "out"), mean(*device, DType::f32, {1}, "mean"),
          rstd(*device, DType::f32, {1}, "rstd");
      device->run(LayerNormForward{out, mean, rstd, {}, x, {}, weight, bias});
      CHECK(rstd.values()[0] > 0);
      CHECK(std::isfinite(rstd.values()[0]));
      CHECK(mean.values()[0] == Approx(x.values()[0]));
      for (const double value : out.values()) CHECK(value == Approx(0.25).margin(1e-3));
    }
  }
}

TEST_CASE("layernorm forward: the sum may be written over x or over the residual") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const std::int64_t N = 9, C = 131;
    const auto x = Operand::normal(*device, rng, {N, C}, "x", 1, dtype),
               residual = Operand::normal(*device, rng, {N, C}, "residual", 1, dtype);
    const auto weight = Operand::normal(*device, rng, {C}, "weight"),
               bias = Operand::normal(*device, rng, {C}, "bias");
    const Values want_sum = goat::test::rounded_to(dtype, plus(x.values(), residual.values()));
    const Values want_out = forward_oracle(want_sum, weight.values(), bias.values()).out;
    for (const bool over_x : {true, false}) {
      INFO("over " << (over_x ? "x" : "residual"));
      const auto first = Operand::of(*device, x.values(), {N, C}, "x", dtype),
                 second = Operand::of(*device, residual.values(), {N, C}, "residual", dtype);
      const Operand& sum = over_x ? first : second;
      const Operand out(*device, dtype, {N, C}, "out"), mean(*device, DType::f32, {N}, "mean"),
          rstd(*device, DType::f32, {N}, "rstd");
      device->run(LayerNormForward{out, mean, rstd, sum, first, second, weight, bias});
      CHECK(sum.values() == want_sum);
      CHECK_MATCHES(dtype, out.values(), want_out);
      CHECK((over_x ? second : first).values() == (over_x ? residual : x).values());
    }
  }
}

TEST_CASE("layernorm forward: a NaN stays in its row, and no tokens are no work") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    INFO("device " << name << ", " << goat::name_of(dtype));
    const auto x = Operand::of(*device, {1, 2, 3, 4, std::nan(""), 6, 7, 8, 10}, {3, 3}, "x", dtype);
    const auto weight = Operand::of(*device, {1, 1, 1}, {3}, "weight"),
               bias = Operand::zeros(*device, {3}, "bias");
    const Operand out(*device, dtype, {3, 3}, "out"), mean(*device, DType::f32, {3}, "mean"),
        rstd(*device, DType::f32, {3}, "rstd");
    device->run(LayerNormForward{out, mean, rstd, {}, x, {}, weight, bias});
    const Values got = out.values();
    for (const std::size_t i : {0, 1, 2, 6, 7, 8}) CHECK(std::isfinite(got[i]));
    for (const std::size_t i : {3, 4, 5}) CHECK(std::isnan(got[i]));

    const Operand none(*device, dtype, {0, 3}, "none"), no_mean(*device, DType::f32, {0}, "no_mean"),
        no_rstd(*device, DType::f32, {0}, "no_rstd");
    device->run(LayerNormForward{none, no_mean, no_rstd, {}, none, {}, weight, bias});
    CHECK(none.values().empty());
  }
}

TEST_CASE("layernorm backward: the oracle is the numerical derivative of the forward oracle") {
  const auto seed = goat::test::fresh_seed();
  INFO("GOAT_TEST_SEED=" << seed);
  Rng rng(seed);
  std::normal_distribution<double> normal;
  Values sum(3 * 5), dout(3 * 5), weight(5), bias(5);
  for (Values* values : {&sum, &dout, &weight, &bias})
    for (double& value : *values) value = normal(rng);
  const Gradients got = backward_oracle(dout, sum, forward_oracle(sum, weight, bias), weight);
  const auto check_derivative = [&](Values& input, const Values& gradient) {
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double step = 1e-5, kept = input[i];
      input[i] = kept + step;
      const double above = inner(dout, forward_oracle(sum, weight, bias).out);
      input[i] = kept - step;
      const double below = inner(dout, forward_oracle(sum, weight, bias).out);
      input[i] = kept;
      CHECK(gradient[i] == Approx((above - below) / (2 * step)).epsilon(1e-6).margin(1e-7));
    }
  };
  check_derivative(sum, got.dsum);
  check_derivative(weight, got.dweight);
  check_derivative(bias, got.dbias);
}

TEST_CASE("layernorm backward: matches float64 at odd shapes and adds to what is there") {
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
      const Values dsum = call.dsum.values(), dweight = call.dweight.values(), dbias = call.dbias.values();
      device->run(call.op());
      const Gradients want =
          backward_oracle(call.dout.values(), call.sum.values(),
                          {{}, call.mean.values(), call.rstd.values(), {}}, call.weight.values());
      CHECK_MATCHES(dtype, call.dsum.values(), plus(dsum, want.dsum), plus(absolute(dsum), want.dsum_terms));
      CHECK_FP32(call.dweight.values(), plus(dweight, want.dweight),
                 plus(absolute(dweight), want.dweight_terms));
      CHECK_FP32(call.dbias.values(), plus(dbias, want.dbias), plus(absolute(dbias), want.dbias_terms));
    }
  }
}

TEST_CASE("layernorm backward: the gradients of weight and bias keep their accuracy over many rows") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const BackwardCall call = backward_call(
        *device, rng, {goat::test::reduced() ? 3000 : (name == "simt" ? 30000 : 262144), 8}, dtype);
    const Values dweight = call.dweight.values(), dbias = call.dbias.values();
    device->run(call.op());
    const Gradients want =
        backward_oracle(call.dout.values(), call.sum.values(),
                        {{}, call.mean.values(), call.rstd.values(), {}}, call.weight.values());
    CHECK_FP32(call.dweight.values(), plus(dweight, want.dweight),
               plus(absolute(dweight), want.dweight_terms));
    CHECK_FP32(call.dbias.values(), plus(dbias, want.dbias), plus(absolute(dbias), want.dbias_terms));
  }
}

TEST_CASE("layernorm: operands may start at any element") {
  for (const auto& [name, dtype] : goat::test::variants()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", " << goat::name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    const std::int64_t N = 5, C = 64;
    const auto x = Operand::normal(*device, rng, {N * C + 1}, "x", 1, dtype),
               weight = Operand::normal(*device, rng, {C}, "weight"),
               bias = Operand::normal(*device, rng, {C}, "bias");
    const goat::Tensor shifted = x.tensor().slice(0, 1, N * C).reshape({N, C});
    const Operand out(*device, dtype, {N, C}, "out"), mean(*device, DType::f32, {N}, "mean"),
        rstd(*device, DType::f32, {N}, "rstd");
    device->run(LayerNormForward{out, mean, rstd, {}, shifted, {}, weight, bias});
    CHECK_MATCHES(
        dtype, out.values(),
        forward_oracle(goat::test::values_of(*device, shifted), weight.values(), bias.values()).out);
  }
}

TEST_CASE("layernorm: bitwise the same in any order of the threads") {
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
        device->run(LayerNormForward{out, call.mean, call.rstd, call.sum, call.dout, call.sum, call.weight,
                                     call.dbias});
        return concatenated({out.values(), call.sum.values(), call.mean.values(), call.rstd.values(),
                             call.dsum.values(), call.dweight.values(), call.dbias.values()});
      });
    }
  }
}
