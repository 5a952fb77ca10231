// The forget gates and their key bias against float64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "test/catch.h"
#include "test/each_variant.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

using namespace goat;
using namespace goat::test;

namespace {

using Index = std::int64_t;
using Values = std::vector<double>;

struct GateShape {
  Index tokens, heads, width;
};

// On both sides of the tiles of tokens, heads and columns, of several partitions of the tokens, of heads that
// no 16 divide, of rows in vectors and not, and of more columns than a block has threads.
const std::vector<GateShape> gate_shapes = {
    {1, 1, 1},    {3, 2, 5},    {64, 16, 32}, {65, 17, 33}, {70, 12, 64}, {130, 3, 40}, {5, 256, 8},
    {2, 33, 264}, {9, 1, 2064}, {4, 9, 270},  {600, 3, 24}, {300, 20, 7}, {2, 3, 0},    {64, 8, 8}};

std::string describe(const GateShape& s) {
  return "N " + std::to_string(s.tokens) + ", H " + std::to_string(s.heads) + ", C " +
         std::to_string(s.width);
}

double magnitude(double value, bool of_terms) { return of_terms ? std::abs(value) : value; }

// Operands of both operations on the gates, with random numbers already in the gradients.
struct Gates {
  Gates(Device& device, const GateShape& s, DType dtype, Rng& rng)
      : shape(s),
        gate(device, DType::f32, {s.tokens, s.heads}, "gate"),
        x(Operand::normal(device, rng, {s.tokens, s.width}, "x", 1, dtype)),
        weight(Operand::normal(device, rng, {s.heads, s.width}, "weight")),
        bias(Operand::normal(device, rng, {s.heads}, "bias")),
        dx(Operand::normal(device, rng, {s.tokens, s.width}, "dx", 1, dtype)),
        dweight(Operand::normal(device, rng, {s.heads, s.width}, "dweight", 3)),
        dbias(Operand::normal(device, rng, {s.heads}, "dbias", 3)),
        dgate(Operand::normal(device, rng, {s.tokens, s.heads}, "dgate")) {}

  ForgetGatesForward forward() const { return {gate, x, weight, bias}; }
  ForgetGatesBackward backward() const { return {dx, dweight, dbias, dgate, x, weight}; }

  // The results in float64, or the sums of their terms' absolute values.
  Values want_gate(bool of_terms) const {
    Values want;
    const Values b = bias.values();
    for (Index n = 0; n < shape.tokens; ++n)
      for (Index h = 0; h < shape.heads; ++h)
        want.push_back(magnitude(b[static_cast<std::size_t>(h)], of_terms));
    const Values rows = x.values(), w = weight.values();
    visit([&](Index n, Index h, Index c) {
      want[at(n, h, shape.heads)] +=
          magnitude(rows[at(n, c, shape.width)] * w[at(h, c, shape.width)], of_terms);
    });
    return want;
  }
  Values want_dx(Values want, bool of_terms) const {
    for (double& value : want) value = magnitude(value, of_terms);
    const Values g = dgate.values(), w = weight.values();
    visit([&](Index n, Index h, Index c) {
      want[at(n, c, shape.width)] += magnitude(g[at(n, h, shape.heads)] * w[at(h, c, shape.width)], of_terms);
    });
    return want;
  }
  Values want_dweight(Values want, bool of_terms) const {
    for (double& value : want) value = magnitude(value, of_terms);
    const Values g = dgate.values(), rows = x.values();
    visit([&](Index n, Index h, Index c) {
      want[at(h, c, shape.width)] +=
          magnitude(g[at(n, h, shape.heads)] * rows[at(n, c, shape.width)], of_terms);
    });
    return want;
  }
  Values want_dbias(Values want, bool of_terms) const {
    for (double& value : want) value = magnitude(value, of_terms);
    const Values g = dgate.values();
    for (std::size_t i = 0; i < g.size(); ++i) want[i % want.size()] += magnitude(g[i], of_terms);
    return want;
  }

  GateShape shape;
  Operand gate, x, weight, bias, dx, dweight, dbias, dgate;

 private:
  static std::size_t at(Index row, Index column, Index width) {
    return static_cast<std::size_t>(row * width + column);
  }
  template <class Visit>
  void visit(Visit visit_term) const {
    for (Index n = 0; n < shape.tokens; ++n)
      for (Index h = 0; h < shape.heads; ++h)
        for (Index c = 0; c < shape.width; ++c) visit_term(n, h, c);
  }
};

// body(gates, device, dtype)
template <class Body>
void for_each_gate_shape(Body body) {
  for_each_variant([&](Device& device, DType dtype, Rng& rng) {
    for (const GateShape& shape : gate_shapes) {
      INFO(describe(shape));
      Gates gates(device, shape, dtype, rng);
      body(gates, device, dtype);
    }
  });
}

// ------------------------------------------------------------------------------------------------- key bias
struct BiasShape {
  Index batch, length, heads, first;
};

// On both sides of what a thread, a warp and a block take.
const std::vector<BiasShape> bias_shapes = {{1, 1, 1, 0},    {2, 3, 2, 0},    {1, 4, 3, 5},   {2, 31, 1, 1},
                                            {1, 128, 2, 0},  {1, 129, 2, 3},  {3, 200, 2, 7}, {1, 1024, 1, 0},
                                            {1, 1025, 2, 2}, {2, 2500, 1, 1}, {70, 1, 5, 9}};

std::string describe(const BiasShape& s) {
  return "B " + std::to_string(s.batch) + ", T " + std::to_string(s.length) + ", H " +
         std::to_string(s.heads) + ", first position " + std::to_string(s.first);
}

long double log_sigmoid(long double x) { return std::min(x, 0.0L) - std::log1p(std::exp(-std::abs(x))); }

// key_bias is a part of a larger tensor, [B, H + 1, P + 2], poisoned but for the position before the first,
// which holds `before`.
struct Bias {
  static constexpr double before = 321.0625;

  Bias(Device& on, const BiasShape& s, const Values& gates, Rng& rng)
      : device(on),
        shape(s),
        all(on, DType::f64, {s.batch, s.heads + 1, s.first + s.length + 2}, "key_bias"),
        gate(Operand::of(on, gates, {s.batch, s.length, s.heads}, "gate")),
        dgate(on, DType::f32, {s.batch, s.length, s.heads}, "dgate"),
        dkey_bias(Operand::normal(on, rng, {s.batch, s.heads, s.length}, "dkey_bias")) {
    Values start = all.values();
    const auto columns = static_cast<std::size_t>(s.first + s.length + 2);
    for (std::size_t row = 0; s.first > 0 && row < start.size() / columns; ++row)
      start[row * columns + static_cast<std::size_t>(s.first) - 1] = before;
    all.set(start);
  }

  Tensor key_bias() const {
    return all.tensor().slice(1, 1, shape.heads).slice(2, 0, shape.first + shape.length);
  }
  ForgetBiasForward forward() const { return {key_bias(), gate, shape.first}; }
  ForgetBiasBackward backward() const { return {dgate, dkey_bias, gate}; }
  // [B, H, T]
  Values biases() const { return values_of(device, key_bias().slice(2, shape.first, shape.length)); }

  Device& device;
  BiasShape shape;
  Operand all, gate, dgate, dkey_bias;
};

Values random_gates(const BiasShape& s, Rng& rng) {
  std::normal_distribution<float> normal(0, 3);
  Values gates(static_cast<std::size_t>(s.batch * s.length * s.heads));
  for (double& gate : gates) gate = normal(rng);
  return gates;
}

// Calls visit(place in [B, T, H], place in [B, H, T]) for each gate, positions ascending.
template <class Visit>
void for_each_gate(const BiasShape& s, Visit visit) {
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index t = 0; t < s.length; ++t)
        visit(static_cast<std::size_t>((b * s.length + t) * s.heads + h),
              static_cast<std::size_t>((b * s.heads + h) * s.length + t));
}

Values want_biases(const BiasShape& s, const Values& gates) {
  Values want(gates.size());
  long double sum = 0;
  for_each_gate(s, [&](std::size_t gate, std::size_t bias) {
    if (bias % static_cast<std::size_t>(s.length) == 0) sum = s.first > 0 ? Bias::before : 0;
    want[bias] = static_cast<double>(sum -= log_sigmoid(gates[gate]));
  });
  return want;
}

// The largest |got - want| / want.
double relative_error(const Values& got, const Values& want) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = got[i] == want[i] ? 0 : std::abs(got[i] - want[i]) / std::abs(want[i]);
    worst = error <= worst ? worst : error;
    if (std::isnan(error)) return error;
  }
  return worst;
}

// sum dkey_bias key_bias as a function of the gates, in float64.
double objective(const BiasShape& s, const Values& gates, const Values& dkey_bias) {
  double sum = 0;
  const Values bias = want_biases(s, gates);
  for (std::size_t i = 0; i < bias.size(); ++i) sum += dkey_bias[i] * bias[i];
  return sum;
}

}  // namespace

TEST_CASE("forget gates forward: match float64") {
  for_each_gate_shape([](Gates& gates, Device& device, DType) {
    device.run(gates.forward());
    CHECK_FP32(gates.gate.values(), gates.want_gate(false), gates.want_gate(true));
  });
}

TEST_CASE("forget gates backward: match float64 and are added, to dx with one rounding") {
  for_each_gate_shape([](Gates& gates, Device& device, DType dtype) {
    const Values dx = gates.dx.values(), dweight = gates.dweight.values(), dbias = gates.dbias.values();
    device.run(gates.backward());
    CHECK_MATCHES(dtype, gates.dx.values(), gates.want_dx(dx, false), gates.want_dx(dx, true));
    CHECK_FP32(gates.dweight.values(), gates.want_dweight(dweight, false), gates.want_dweight(dweight, true));
    CHECK_FP32(gates.dbias.values(), gates.want_dbias(dbias, false), gates.want_dbias(dbias, true));
  });
}

TEST_CASE("forget gates: the same bits in any order of threads") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    for (const GateShape& shape : {GateShape{150, 17, 24}, GateShape{70, 3, 21}}) {
      Gates gates(*device, shape, dtype, rng);
      const Values dx = gates.dx.values(), dweight = gates.dweight.values(), dbias = gates.dbias.values();
      check_schedules(name, [&] {
        gates.dx.set(dx);
        gates.dweight.set(dweight);
        gates.dbias.set(dbias);
        device->run(gates.forward());
        device->run(gates.backward());
        return concatenated(
            {gates.gate.values(), gates.dx.values(), gates.dweight.values(), gates.dbias.values()});
      });
    }
  }
}

TEST_CASE("forget bias forward: matches -sum log sigmoid to double precision, from any position on") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const BiasShape& shape : bias_shapes) {
      INFO(describe(shape));
      const Values gates = random_gates(shape, rng);
      Bias bias(device, shape, gates, rng);
      const Values start = bias.all.values();
      device.run(bias.forward());
      CHECK(relative_error(bias.biases(), want_biases(shape, gates)) < 1e-13);

      // Nothing else was written.
      const Values after = bias.all.values();
      const auto written = std::count_if(after.begin(), after.end(), [](double x) { return !std::isnan(x); }),
                 known = std::count_if(start.begin(), start.end(), [](double x) { return !std::isnan(x); });
      CHECK(written - known == shape.batch * shape.heads * shape.length);
    }
  });
}

TEST_CASE("forget bias forward: grows with every position, by nothing where the gate is wide open") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const BiasShape shape{1, 1500, 1, 0};
    Values gates = random_gates(shape, rng);
    for (std::size_t t = 100; t < 1400; ++t) gates[t] = 1e4;
    const Bias bias(device, shape, gates, rng);
    device.run(bias.forward());
    const Values got = bias.biases();
    const double rounding = 1e-14 * got.back();  // of sums in another order
    for (std::size_t t = 1; t < got.size(); ++t) {
      const double step = got[t] - got[t - 1];
      const bool open = t >= 100 && t < 1400;
      if (step < -rounding || (open && step > rounding)) CHECK(step == 0);
    }
    CHECK(got[99] > 10);
    CHECK(got[1499] > got[1399] + 10);
  });
}

TEST_CASE("forget bias: extreme gates give finite biases and gradients") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const double size : {100.0, 1e4}) {
      const BiasShape shape{1, 700, 2, 0};
      Values gates(1400);
      for (std::size_t i = 0; i < gates.size(); ++i) gates[i] = (i / 2) % 3 == 0 ? size : -size;
      const Bias bias(device, shape, gates, rng);
      device.run(bias.forward());
      CHECK(relative_error(bias.biases(), want_biases(shape, gates)) < 1e-13);
      device.run(bias.backward());
      const Values dgate = bias.dgate.values(), dkey_bias = bias.dkey_bias.values();
      for_each_gate(shape, [&](std::size_t gate, std::size_t key) {
        double sum = 0;
        for (std::size_t j = key; j < (key / 700 + 1) * 700; ++j) sum += dkey_bias[j];
        const double want = gates[gate] > 0 ? 0 : -sum;
        if (std::abs(dgate[gate] - want) > 1e-6 * (1 + std::abs(want))) CHECK(dgate[gate] == want);
      });
    }
  });
}

TEST_CASE("forget bias: all gates at 0.5 give ln 2 a position, exact to 1e-7 at 32,768") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    const BiasShape shape{1, 32768, 1, 0};
    const Bias bias(device, shape, Values(32768, 0.0), rng);
    device.run(bias.forward());
    const Values got = bias.biases();
    for (const std::size_t t : {std::size_t{0}, std::size_t{1023}, std::size_t{1024}, std::size_t{32767}})
      CHECK(std::abs(got[t] - static_cast<double>(t + 1) * std::log(2.0)) < 1e-7);
  });
}

TEST_CASE("forget bias backward: matches the derivative of sum dkey_bias key_bias") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    for (const BiasShape& shape : bias_shapes) {
      INFO(describe(shape));
      const Values gates = random_gates(shape, rng);
      const Bias bias(device, shape, gates, rng);
      device.run(bias.backward());
      const Values dkey_bias = bias.dkey_bias.values();
      Values want(gates.size()), terms(gates.size());
      for_each_gate(shape, [&](std::size_t gate, std::size_t key) {
        const auto length = static_cast<std::size_t>(shape.length);
        double sum = 0, magnitudes = 0;
        for (std::size_t j = key; j < (key / length + 1) * length; ++j)
          sum += dkey_bias[j], magnitudes += std::abs(dkey_bias[j]);
        const double forgets = 1 / (1 + std::exp(gates[gate]));
        want[gate] = -forgets * sum;
        terms[gate] = forgets * magnitudes;
      });
      CHECK_FP32(bias.dgate.values(), want, terms);
      if (gates.size() > 100) continue;
      Values varied = gates;
      for (std::size_t i = 0; i < gates.size(); ++i) {
        varied[i] = gates[i] + 1e-5;
        const double above = objective(shape, varied, dkey_bias);
        varied[i] = gates[i] - 1e-5;
        CHECK(std::abs((above - objective(shape, varied, dkey_bias)) / 2e-5 - want[i]) < 1e-6);
        varied[i] = gates[i];
      }
    }
  });
}

TEST_CASE("forget bias backward: sums over the keys in double") {
  for_each_device(DType::f32, [](Device& device, Rng& rng) {
    Bias bias(device, {1, 3, 1, 0}, {0, 0, 0}, rng);
    bias.dkey_bias.set({-0x1p24, 1, 0x1p24});  // in fp32 these add up to 0
    device.run(bias.backward());
    CHECK(bias.dgate.values()[0] == -0.5);
  });
}

TEST_CASE("forget bias: the same bits in any order of threads") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    Rng rng(fresh_seed());
    const BiasShape shape{2, 1300, 2, 3};
    const Bias bias(*device, shape, random_gates(shape, rng), rng);
    check_schedules(name, [&] {
      device->run(bias.forward());
      device->run(bias.backward());
      return concatenated({bias.biases(), bias.dgate.values()});
    });
  }
}
