// The key bias: sink features and sink MLP against the float64 oracle.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/prior_setup.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/prior_oracle.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using namespace goat;
using namespace goat::test;

TEST_CASE("sink features: match float64 at odd sizes, beyond the training length, in one and two dimensions",
          "[sink]") {
  std::vector<Positions> layouts;
  for (const std::int64_t rows : {1, 2, 65, 129}) layouts.push_back(Positions::sequence(0, rows));
  layouts.push_back(Positions::sequence(32768 - 129, 129));
  layouts.push_back(Positions::grid_with_class_token(65, 8));

  for (const std::string& name : device_names())
    for (const Positions& positions : layouts)
      for (const std::int64_t modes : {0, 1, 3, 8})
        for (const std::int64_t train_length : {1, 64}) {
          const auto device = open_tested(name);
          INFO(name << ", T = " << positions.rows() << ", A = " << positions.axes << ", M = " << modes
                    << ", train_length = " << train_length);
          const std::vector<double> frequency = fourier_frequencies(modes, 10000);
          const Operand features(*device, DType::f32, {positions.rows(), 2 * modes + 2}, "features");
          device->run(SinkFeatures{features,
                                   Operand::of(*device, frequency, {modes}, "frequency", DType::f64),
                                   Operand::of(*device, positions.values, {positions.rows(), positions.axes},
                                               "positions", DType::i32),
                                   train_length});

          const std::vector<double> got = features.values(),
                                    want = sink_features(frequency, positions,
                                                         static_cast<double>(train_length));
          REQUIRE(got.size() == want.size());
          double worst = 0;
          for (std::size_t i = 0; i < want.size(); ++i)
            worst = std::isfinite(got[i])
                        ? std::max(worst, std::abs(got[i] - want[i]) / std::max(1.0, std::abs(want[i])))
                        : INFINITY;
          CHECK(worst <= 0x1p-24);
        }
}

namespace {
struct SinkShape {
  std::int64_t batch, rows, heads, width, units;
};
// widths 2M+2 for M = 0, 1, 8, 16; units as min(2F, max(2H, 4)) gives them, and others
const std::vector<SinkShape> sink_shapes = {{1, 1, 1, 2, 4},    {3, 2, 3, 4, 6},     {1, 65, 1, 18, 4},
                                            {3, 129, 3, 18, 6}, {2, 64, 12, 18, 24}, {1, 65, 3, 4, 7},
                                            {2, 33, 9, 34, 35}};

std::string describe(const SinkShape& s) {
  std::string text = "B T H F n =";
  for (const std::int64_t extent : {s.batch, s.rows, s.heads, s.width, s.units})
    text.append(" ").append(std::to_string(extent));
  return text;
}

// Parameters large enough for silu to be far from linear.
struct SinkFixture {
  SinkShape shape;
  Operand features, w1, b1, w2, bump;

  SinkFixture(Device& device, Rng& rng, const SinkShape& s)
      : shape(s),
        features(Operand::normal(device, rng, {s.rows, s.width}, "features")),
        w1(Operand::normal(device, rng, {s.units, s.width}, "w1")),
        b1(Operand::normal(device, rng, {s.units}, "b1")),
        w2(Operand::normal(device, rng, {s.heads, s.units}, "w2")),
        bump(Operand::normal(device, rng, {s.heads}, "bump")) {}

  SinkMlp mlp() const { return {w1.values(), b1.values(), w2.values(), bump.values()}; }
};
}  // namespace

TEST_CASE("sink forward: key bias and hidden match float64, the bump is on key 0 alone", "[sink]") {
  for (const std::string& name : device_names())
    for (const SinkShape& shape : sink_shapes) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", seed " << seed << ", " << describe(shape));
      const SinkFixture fixture(*device, rng, shape);
      const Operand key_bias(*device, DType::f32, {shape.heads, shape.rows}, "key_bias"),
          hidden(*device, DType::f32, {shape.rows, shape.units}, "hidden");
      device->run(
          SinkForward{key_bias, hidden, fixture.features, fixture.w1, fixture.b1, fixture.w2, fixture.bump});

      const SinkMlp mlp = fixture.mlp();
      const std::vector<double> features = fixture.features.values();
      CHECK_FP32(hidden.values(), mlp.hidden(features), mlp.absolute().hidden(absolute(features)));
      CHECK_FP32(key_bias.values(), mlp.key_bias(features), mlp.absolute().key_bias(absolute(features)));
    }
}

TEST_CASE("sink forward: hidden units far out in silu's tails give finite, exact limits", "[sink]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const Operand features = Operand::of(*device, {1, -1}, {2, 1}, "features"),
                  w1 = Operand::of(*device, {3e4}, {1, 1}, "w1");
    const Operand b1 = Operand::zeros(*device, {1}, "b1"), w2 = Operand::of(*device, {1}, {1, 1}, "w2"),
                  bump = Operand::zeros(*device, {1}, "bump");
    const Operand key_bias(*device, DType::f32, {1, 2}, "key_bias"),
        hidden(*device, DType::f32, {2, 1}, "hidden");
    device->run(SinkForward{key_bias, hidden, features, w1, b1, w2, bump});
    CHECK(key_bias.values() == std::vector<double>{3e4, 0});
  }
}

namespace {
struct SinkGradients {
  Operand dw1, db1, dw2, dbump, sum, dkey_bias, hidden;

  // Random numbers already in the accumulated outputs; the workspace is poisoned.
  SinkGradients(Device& device, Rng& rng, const SinkFixture& fixture)
      : dw1(Operand::normal(device, rng, {fixture.shape.units, fixture.shape.width}, "dw1")),
        db1(Operand::normal(device, rng, {fixture.shape.units}, "db1")),
        dw2(Operand::normal(device, rng, {fixture.shape.heads, fixture.shape.units}, "dw2")),
        dbump(Operand::normal(device, rng, {fixture.shape.heads}, "dbump")),
        sum(device, DType::f32, {fixture.shape.heads, fixture.shape.rows}, "dkey_bias_sum"),
        dkey_bias(Operand::normal(device, rng, {fixture.shape.batch, fixture.shape.heads, fixture.shape.rows},
                                  "dkey_bias")),
        hidden(Operand::of(device, fixture.mlp().hidden(fixture.features.values()),
                           {fixture.shape.rows, fixture.shape.units}, "hidden")) {}

  SinkBackward operation(const SinkFixture& fixture) const {
    return {dw1, db1, dw2, dbump, sum, dkey_bias, hidden, fixture.features, fixture.w2};
  }
  std::vector<std::vector<double>> parameter_gradients() const {
    return {dw1.values(), db1.values(), dw2.values(), dbump.values()};
  }
  void set(const std::vector<std::vector<double>>& values) {
    dw1.set(values[0]);
    db1.set(values[1]);
    dw2.set(values[2]);
    dbump.set(values[3]);
  }
};

std::vector<double> summed_over_batch(const std::vector<double>& gradients, std::int64_t batch) {
  std::vector<double> sum(gradients.size() / static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < gradients.size(); ++i) sum[i % sum.size()] += gradients[i];
  return sum;
}
}  // namespace

TEST_CASE("sink backward: gradients match the derivative of sum dU u and are added to what was there",
          "[sink]") {
  for (const std::string& name : device_names())
    for (const SinkShape& shape : sink_shapes) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", seed " << seed << ", " << describe(shape));
      const SinkFixture fixture(*device, rng, shape);
      const SinkGradients gradients(*device, rng, fixture);
      SinkMlp mlp = fixture.mlp();
      const std::vector<double> features = fixture.features.values(),
                                du = summed_over_batch(gradients.dkey_bias.values(), shape.batch);
      const auto loss = [&] {
        const std::vector<double> u = mlp.key_bias(features);
        double total = 0;
        for (std::size_t i = 0; i < u.size(); ++i) total += du[i] * u[i];
        return total;
      };
      std::vector<std::vector<double>> want = gradients.parameter_gradients();
      std::vector<double>* const parameters[] = {&mlp.w1, &mlp.b1, &mlp.w2, &mlp.bump};
      for (std::size_t which = 0; which < want.size(); ++which) {
        const std::vector<double> derivative = numerical_gradient(*parameters[which], 1e-4, loss);
        for (std::size_t i = 0; i < derivative.size(); ++i) want[which][i] += derivative[i];
      }

      device->run(gradients.operation(fixture));
      CHECK_FP32(gradients.dw1.values(), want[0]);
      CHECK_FP32(gradients.db1.values(), want[1]);
      CHECK_FP32(gradients.dw2.values(), want[2]);
      CHECK_FP32(gradients.dbump.values(), want[3]);
      CHECK_FP32(gradients.sum.values(), du,
                 summed_over_batch(absolute(gradients.dkey_bias.values()), shape.batch));
    }
}

TEST_CASE("sink backward: what softmax makes cancel over the keys, cancels to double precision", "[sink]") {
  // With w1 = 0 every key has the same hidden units, so that db1 and dw2 are multiples of sum_j dU_j, which
  // is 0 for a softmax.
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", seed " << seed);
    const SinkShape shape{1, 2048, 2, 18, 4};
    SinkFixture fixture(*device, rng, shape);
    fixture.w1.set(std::vector<double>(4 * 18));
    SinkGradients gradients(*device, rng, fixture);
    std::vector<double> du = gradients.dkey_bias.values();
    for (std::size_t i = 0; i < du.size(); ++i)  // in the opposite order, so that no partial sum has its like
      if (i % 2048 >= 1024) du[i] = -du[i - i % 2048 + (2047 - i % 2048)];
    gradients.dkey_bias.set(du);
    gradients.set({std::vector<double>(4 * 18), std::vector<double>(4), std::vector<double>(2 * 4),
                   std::vector<double>(2)});
    device->run(gradients.operation(fixture));

    const SinkMlp mlp = fixture.mlp();
    std::vector<double> db1_terms, dw2_terms;
    for (std::size_t h = 0; h < 2; ++h)
      for (std::size_t m = 0; m < 4; ++m) {
        double magnitude = 0;
        for (std::size_t j = 0; j < 2048; ++j) magnitude += std::abs(du[h * 2048 + j]);
        const double x = mlp.b1[m], s = 1 / (1 + std::exp(-x));
        dw2_terms.push_back(magnitude * std::abs(x * s));
        if (h == 0) db1_terms.push_back(0);
        db1_terms[m] += magnitude * std::abs(mlp.w2[h * 4 + m] * s * (1 + x * (1 - s)));
      }
    const std::vector<double> db1 = gradients.db1.values(), dw2 = gradients.dw2.values();
    for (std::size_t m = 0; m < db1.size(); ++m)
      CHECK(std::abs(db1[m]) <= 0x1p-40 * db1_terms[m]);  // out of reach for fp32 sums
    for (std::size_t i = 0; i < dw2.size(); ++i) CHECK(std::abs(dw2[i]) <= 0x1p-40 * dw2_terms[i]);
  }
}

TEST_CASE("sink backward: the heads of a group count as so many sequences", "[sink]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", seed " << seed);
    constexpr std::int64_t batch = 2, heads = 3, group = 4, rows = 70;
    const SinkFixture fixture(*device, rng, {batch * group, rows, heads, 4, 5});
    SinkGradients gradients(*device, rng, fixture);
    const std::vector<std::vector<double>> start = gradients.parameter_gradients();
    const std::vector<double> apart = gradients.dkey_bias.values();  // [B group, H, T]
    device->run(gradients.operation(fixture));
    const std::vector<std::vector<double>> want = gradients.parameter_gradients();
    const std::vector<double> want_sum = gradients.sum.values();

    std::vector<double> grouped(apart.size());  // [B, H group, T]
    for (std::size_t i = 0; i < apart.size(); ++i) {
      const std::size_t t = i % rows, h = i / rows % heads, g = i / rows / heads % group,
                        b = i / rows / heads / group;
      grouped[((b * heads + h) * group + g) * rows + t] = apart[i];
    }
    const Operand dkey_bias = Operand::of(*device, grouped, {batch, heads * group, rows}, "dkey_bias");
    gradients.set(start);
    SinkBackward op = gradients.operation(fixture);
    op.dkey_bias = dkey_bias;
    device->run(op);
    CHECK_FP32(gradients.sum.values(), want_sum);
    for (std::size_t which = 0; which < want.size(); ++which)
      CHECK_FP32(gradients.parameter_gradients()[which], want[which]);
  }
}

TEST_CASE("sink backward: the sum over the batch and the group is taken in double", "[sink]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", seed " << seed);
    const SinkFixture fixture(*device, rng, {3, 1, 1, 2, 4});
    SinkGradients gradients(*device, rng, fixture);
    gradients.dkey_bias.set({0x1p24, 1, -0x1p24});  // adds up to 0 in fp32
    device->run(gradients.operation(fixture));
    CHECK(gradients.sum.values()[0] == 1);
    SinkBackward op = gradients.operation(fixture);
    op.dkey_bias = op.dkey_bias.reshape({1, 3, 1});
    device->run(op);
    CHECK(gradients.sum.values()[0] == 1);
  }
}

TEST_CASE("sink backward: rows beyond 256 tiles match the formulas in float64", "[sink]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", seed " << seed);
    constexpr std::size_t rows = 17000, units = 3, width = 2;
    const SinkFixture fixture(*device, rng, {1, rows, 1, width, units});
    SinkGradients gradients(*device, rng, fixture);
    gradients.set({std::vector<double>(units * width), std::vector<double>(units), std::vector<double>(units),
                   std::vector<double>(1)});
    device->run(gradients.operation(fixture));

    const std::vector<double> du = gradients.dkey_bias.values(), x = gradients.hidden.values(),
                              phi = fixture.features.values(), w2 = fixture.w2.values();
    std::vector<double> dw1(units * width), db1(units), dw2(units);
    for (std::size_t j = 0; j < rows; ++j)
      for (std::size_t m = 0; m < units; ++m) {
        const double value = x[j * units + m], s = 1 / (1 + std::exp(-value)),
                     dhidden = du[j] * w2[m] * s * (1 + value * (1 - s));
        for (std::size_t f = 0; f < width; ++f) dw1[m * width + f] += dhidden * phi[j * width + f];
        db1[m] += dhidden;
        dw2[m] += du[j] * value * s;
      }
    CHECK_FP32(gradients.dw1.values(), dw1);
    CHECK_FP32(gradients.db1.values(), db1);
    CHECK_FP32(gradients.dw2.values(), dw2);
  }
}

TEST_CASE("sink: the same bits in any order of threads", "[sink]") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", seed " << seed);
    const SinkShape shape{3, 129, 3, 18, 6};
    const SinkFixture fixture(*device, rng, shape);
    SinkGradients gradients(*device, rng, fixture);
    const std::vector<std::vector<double>> start = gradients.parameter_gradients();
    const Operand frequency =
        Operand::of(*device, fourier_frequencies(8, 10000), {8}, "frequency", DType::f64);
    const Operand positions = Operand::of(*device, Positions::sequence(0, shape.rows).values, {shape.rows, 1},
                                          "positions", DType::i32);
    const Operand key_bias(*device, DType::f32, {shape.heads, shape.rows}, "key_bias");
    check_schedules(name, [&] {
      gradients.set(start);
      device->run(SinkFeatures{fixture.features, frequency, positions, 64});
      device->run(SinkForward{key_bias, gradients.hidden, fixture.features, fixture.w1, fixture.b1,
                              fixture.w2, fixture.bump});
      device->run(gradients.operation(fixture));
      std::vector<double> results = key_bias.values();
      for (const std::vector<double>& gradient : gradients.parameter_gradients())
        results.insert(results.end(), gradient.begin(), gradient.end());
      return results;
    });
  }
}
