// The float64 layers of which the whole-model oracle is made: worked examples, what defines them, and the
// devices' operations, which have oracles of their own in test_rmsnorm.cpp, test_rope.cpp and so on.
#include "test/layer_oracle.h"

#include <cmath>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/operand.h"

using namespace goat;
using namespace goat::test;

namespace {
Matrix random_matrix(Rng& rng, std::int64_t elements) {
  std::normal_distribution<float> normal;
  Matrix values;
  for (std::int64_t i = 0; i < elements; ++i) values.push_back(static_cast<double>(normal(rng)));
  return values;
}

double dot(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Matrix swiglu(const Matrix& gate, Matrix up) {
  for (std::size_t i = 0; i < up.size(); ++i) up[i] *= silu(gate[i]);
  return up;
}
}  // namespace

TEST_CASE("layer oracle: worked examples") {
  const auto near = [](double value) { return Approx(value).epsilon(1e-12); };
  const Matrix normed = rmsnorm({3, 4, 0, 0}, {1, -2, 5, 5});
  CHECK(normed[0] == near(3 / std::sqrt(6.25 + 1e-5)));
  CHECK(normed[1] == near(-8 / std::sqrt(6.25 + 1e-5)));
  CHECK(layernorm({1, 5}, {2, 3}, {10, 20})[1] == near(20 + 6 / std::sqrt(4 + 1e-5)));
  CHECK(rmsnorm({3, 4, 0, 0}, {1, -2, 5, 5}, 0.75)[0] == near(3 / std::sqrt(7)));
  CHECK(layernorm({1, 5}, {2, 3}, {}, 5)[1] == near(2));
  CHECK(silu(1) == near(0.7310585786300049));
  CHECK(silu(-2) == near(-0.2384058440442351));
  CHECK(linear({1, 2}, {3, 4, 5, 6}, {100, 200}, 2) == Matrix{111, 217});
  // One head of four coordinates, base 16: frequencies 1 and 1/4. The pairs are (x_0, x_2) and (x_1, x_3).
  const Matrix turned = rotated({1, 10, 0, 0}, 1, 4, 16, {.first_position = 2});
  const Matrix expected = {std::cos(2), 10 * std::cos(0.5), std::sin(2), 10 * std::sin(0.5)};
  for (std::size_t i = 0; i < 4; ++i) CHECK(turned[i] == near(expected[i]));
  // Of six coordinates the first four turn, by half the angle.
  const Matrix part = rotated({1, 10, 0, 0, 7, 8}, 1, 6, 16, {.dim = 4, .first_position = 4, .stretch = 0.5});
  for (std::size_t i = 0; i < 4; ++i) CHECK(part[i] == near(expected[i]));
  CHECK((part[4] == 7 && part[5] == 8));
  // The second row weighs its two keys 1 : 3.
  CHECK(causal_attention({0, 1}, {0, std::log(9)}, {4, 8}, {Matrix(4)}, 2, 0.5)[1] == near(7));
  // Two heads of queries read one head of keys: 1 : 3 and 1 : 9.
  const Matrix grouped =
      causal_attention({0, 0, 1, 2}, {0, std::log(3)}, {4, 8}, {Matrix(4), Matrix(4)}, 2, 1, 2);
  CHECK((grouped[2] == near(7) && grouped[3] == near(7.6)));
}

TEST_CASE(
    "layer oracle: <q_i, k_j> of rotated q and k depends on the distance i - j alone, and does depend") {
  const std::uint64_t seed = fresh_seed();
  INFO("seed " << seed);
  Rng rng(seed);
  const std::int64_t head_dim = 10;
  const double base = 100;
  const Matrix q = random_matrix(rng, head_dim), k = random_matrix(rng, head_dim);
  const auto logit = [&](std::int64_t i, std::int64_t j) {
    return dot(rotated(q, 1, head_dim, base, {.first_position = i}),
               rotated(k, 1, head_dim, base, {.first_position = j}));
  };
  for (const std::int64_t distance : {0, 1, 7}) {
    for (const std::int64_t j : {1, 5, 900})
      CHECK(logit(j + distance, j) == Approx(logit(distance, 0)).margin(1e-9));
    CHECK(std::abs(logit(distance, 0) - logit(distance + 1, 0)) > 1e-6);
  }
  CHECK(logit(0, 0) == Approx(dot(q, k)).margin(1e-12));
}

TEST_CASE("layer oracle: norms, activations, projection and rotation are what the devices compute") {
  for (const std::string& name : device_names()) {
    const auto device = open_device(name);
    const std::uint64_t seed = fresh_seed();
    INFO("device " << name << ", seed " << seed);
    Rng rng(seed);
    const std::int64_t rows = 5, width = 24, heads = 3, head_dim = width / heads;
    const Matrix x = random_matrix(rng, rows * width), other = random_matrix(rng, rows * width),
                 weight = random_matrix(rng, width), bias = random_matrix(rng, width),
                 square = random_matrix(rng, width * width);
    const auto matrix = [&](const Matrix& values) {
      return Operand::of(*device, values, {static_cast<std::int64_t>(values.size()) / width, width}, "x");
    };
    const auto vector = [&](const Matrix& values) { return Operand::of(*device, values, {width}, "weight"); };
    const Operand in = matrix(x), second = matrix(other), w = vector(weight), b = vector(bias),
                  projection = matrix(square);
    const Operand out(*device, DType::f32, {rows, width}, "out"), mean(*device, DType::f32, {rows}, "mean"),
        rstd(*device, DType::f32, {rows}, "rstd");

    device->run(RmsNormForward{.out = out, .rstd = rstd, .sum = {}, .x = in, .residual = {}, .weight = w});
    CHECK_FP32(out.values(), rmsnorm(x, weight));
    device->run(LayerNormForward{
        .out = out, .mean = mean, .rstd = rstd, .sum = {}, .x = in, .residual = {}, .weight = w, .bias = b});
    CHECK_FP32(out.values(), layernorm(x, weight, bias));
    device->run(SwigluForward{.out = out, .gate = in, .up = second});
    CHECK_FP32(out.values(), swiglu(x, other));
    device->run(GeluForward{.out = out, .x = in});
    Matrix activated = x;
    for (double& value : activated) value = gelu(value);
    CHECK_FP32(out.values(), activated);
    device->run(LinearForward{.out = out, .x = in, .weight = projection, .bias = b});
    CHECK_FP32(out.values(), linear(x, square, bias, width));

    Matrix frequencies, positions;
    for (std::int64_t r = 0; r < head_dim / 2; ++r)
      frequencies.push_back(std::pow(50.0, -2.0 * static_cast<double>(r) / static_cast<double>(head_dim)));
    for (std::int64_t t = 0; t < rows + 4; ++t) positions.push_back(static_cast<double>(t));
    const Operand table(*device, DType::f32, {rows + 4, head_dim / 2, 2}, "fourier");
    device->run(
        FourierTable{.table = table,
                     .frequency = Operand::of(*device, frequencies, {head_dim / 2}, "frequency", DType::f64),
                     .positions = Operand::of(*device, positions, {rows + 4, 1}, "positions", DType::i32)});
    const Operand q = Operand::of(*device, x, {1, rows, heads, head_dim}, "q");
    device->run(Rope{.q = q, .k = {}, .fourier = table, .first_position = 4});
    CHECK_FP32(q.values(), rotated(x, heads, head_dim, 50, {.first_position = 4}));
  }
}
