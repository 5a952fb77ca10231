// The Fourier table and the positional lanes of q and k against the float64 oracle.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/prior_setup.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/prior_operands.h"
#include "test/prior_oracle.h"
#include "test/schedules.h"
#include "test/tested_device.h"
#include "test/values.h"

using namespace goat;
using namespace goat::test;

namespace {
constexpr double poison = std::numeric_limits<double>::quiet_NaN();
constexpr double unit = PriorLanesForward::key_bias_unit;
}  // namespace

// -------------------------------------------------------------------------------------------- Fourier table

TEST_CASE(
    "fourier table: within 2^-24 of float64 up to position 32767, in one and two dimensions, for f64 and f32 "
    "frequencies",
    "[prior]") {
  std::vector<Positions> layouts;
  for (const std::int64_t rows : {1, 2, 65, 129}) layouts.push_back(Positions::sequence(0, rows));
  layouts.push_back(Positions::sequence(32768 - 129, 129));
  layouts.push_back(Positions::grid_with_class_token(65, 8));
  layouts.push_back(Positions{{5, -1, 7}, 1});

  for (const std::string& name : device_names())
    for (const Positions& positions : layouts)
      for (const std::int64_t modes : {1, 2, 3, 8})
        for (const DType dtype : {DType::f64, DType::f32}) {
          const auto device = open_tested(name);
          INFO(name << ", T = " << positions.rows() << ", A = " << positions.axes << ", R = " << modes << ", "
                    << name_of(dtype));
          const Operand frequency =
              Operand::of(*device, fourier_frequencies(modes, 10000), {modes}, "frequency", dtype);
          const Operand table(*device, DType::f32, {positions.rows(), modes, 2}, "table");
          device->run(FourierTable{table, frequency, positions_operand(*device, positions)});

          const std::vector<double> got = table.values(), want = fourier_table(frequency.values(), positions);
          double worst = 0;
          for (std::size_t i = 0; i < want.size(); ++i)
            worst = std::isfinite(got[i]) ? std::max(worst, std::abs(got[i] - want[i])) : INFINITY;
          CHECK(worst <= 0x1p-24);
        }
}

// ---------------------------------------------------------------------------------------------------- lanes

namespace {
struct LaneShape {
  std::int64_t batch, rows, heads, modes, lane_dim, first_position;
  std::int64_t content = 6;
  std::int64_t head_dim() const { return content + lane_dim; }
  std::int64_t table_rows() const { return first_position + rows + 3; }
};
// also lane dimensions and row lengths that are odd, no modes, and more lanes a row than a block has threads
const std::vector<LaneShape> lane_shapes = {
    {1, 1, 1, 1, 4, 0},    {1, 2, 3, 2, 6, 0},     {3, 65, 3, 2, 6, 5},
    {1, 129, 1, 8, 18, 0}, {3, 129, 3, 2, 11, 17}, {1, 1, 3, 4, 12, 1000},
    {2, 5, 3, 2, 6, 3, 7}, {2, 3, 3, 0, 2, 1},     {1, 2, 60, 2, 6, 0}};

// A packed [B, T, 3, H, d_h] activation with random content and poisoned lanes of q and k, and what
// PriorLanesForward needs besides.
struct LanesFixture {
  LaneShape shape;
  float scale;
  std::vector<double> frequency;
  Positions positions;
  Operand qkv, alpha, beta, key_bias, fourier;

  LanesFixture(Device& device, Rng& rng, LaneShape s, DType dtype = DType::f32)
      : shape(s),
        scale(1 / std::sqrt(static_cast<float>(s.content))),
        frequency(fourier_frequencies(s.modes, 10000)),
        positions(Positions::sequence(0, s.table_rows())),
        qkv(Operand::normal(device, rng, {s.batch, s.rows, 3, s.heads, s.head_dim()}, "qkv", 1, dtype)),
        alpha(Operand::normal(device, rng, {s.heads, s.modes}, "alpha")),
        beta(Operand::normal(device, rng, {s.heads, s.modes}, "beta")),
        key_bias(Operand::normal(device, rng, {s.heads, s.table_rows()}, "key_bias", 3)),
        fourier(Operand::of(device, fourier_table(frequency, positions), {s.table_rows(), s.modes, 2},
                            "fourier")) {
    std::vector<double> values = qkv.values();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (is_lane(i)) values[i] = poison;
    qkv.set(values);
  }

  std::size_t part(std::size_t i) const {
    return i / static_cast<std::size_t>(shape.heads * shape.head_dim()) % 3;
  }  // 0, 1, 2: q, k, v
  std::int64_t lane(std::size_t i) const {
    return static_cast<std::int64_t>(i) % shape.head_dim() - shape.content;
  }
  bool is_lane(std::size_t i) const { return part(i) < 2 && lane(i) >= 0; }

  PriorLanesForward operation() const {
    return {qkv.tensor().select(2, 0),
            qkv.tensor().select(2, 1),
            alpha,
            beta,
            key_bias,
            fourier,
            shape.content,
            shape.first_position,
            scale};
  }
};

struct LanesOracle {
  std::vector<double> query_modes, key_modes, key_bias;  // [B, T, H, 2R], [B, T, H, 2R], [B, T, H]
};

LanesOracle lanes_oracle(const LanesFixture& fixture) {
  const LaneShape& s = fixture.shape;
  const std::vector<HeadPrior> heads = heads_of(fixture.alpha, fixture.beta, fixture.frequency);
  const std::vector<double> bias = fixture.key_bias.values();
  LanesOracle oracle;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t t = s.first_position; t < s.first_position + s.rows; ++t)
      for (std::int64_t h = 0; h < s.heads; ++h) {
        for (const double a : query_vector(heads[h], fixture.positions, t))
          oracle.query_modes.push_back(a / fixture.scale);
        for (const double c : key_vector(heads[h], fixture.positions, t)) oracle.key_modes.push_back(c);
        oracle.key_bias.push_back(bias[h * s.table_rows() + t] / (fixture.scale * unit));
      }
  return oracle;
}
}  // namespace

TEST_CASE("prior lanes forward: lanes match float64, content and values stay as they were bit for bit",
          "[prior]") {
  for (const auto& [name, dtype] : variants())
    for (const LaneShape& shape : lane_shapes) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", " << name_of(dtype) << ", seed " << seed << ", B T H R d_p first = " << shape.batch
                << " " << shape.rows << " " << shape.heads << " " << shape.modes << " " << shape.lane_dim
                << " " << shape.first_position << ", d_c = " << shape.content);
      const LanesFixture fixture(*device, rng, shape, dtype);
      const std::vector<double> before = fixture.qkv.values();
      device->run(fixture.operation());
      const std::vector<double> after = fixture.qkv.values();

      std::vector<double> query_modes, key_modes, key_bias;
      bool untouched = true, units_exact = true, spare_zero = true;
      for (std::size_t i = 0; i < after.size(); ++i) {
        const std::int64_t lane = fixture.lane(i), past_modes = lane - 2 * shape.modes;
        const bool is_query = fixture.part(i) == 0;
        if (!fixture.is_lane(i)) {
          untouched = untouched && after[i] == before[i];
        } else if (past_modes < 0) {
          (is_query ? query_modes : key_modes).push_back(after[i]);
        } else if (past_modes >= 2) {
          spare_zero = spare_zero && after[i] == 0;
        } else if (is_query) {
          units_exact = units_exact && after[i] == unit;
        } else if (past_modes == 0) {
          key_bias.push_back(after[i] + after[i + 1]);  // hi + lo
        }
      }
      CHECK(untouched);
      CHECK(units_exact);
      CHECK(spare_zero);
      const LanesOracle oracle = lanes_oracle(fixture);
      CHECK_MATCHES(dtype, query_modes, oracle.query_modes);
      CHECK_MATCHES(dtype, key_modes, oracle.key_modes);
      if (dtype == DType::f32) CHECK_FP32(key_bias, oracle.key_bias);
      double worst = 0;  // two bf16 carry 16 bits and a sign; the fp32 value that they split has two
                         // roundings of its own
      for (std::size_t i = 0; i < key_bias.size(); ++i)
        worst = std::max(worst, std::abs(key_bias[i] / oracle.key_bias[i] - 1));
      CHECK(worst <= 0x1p-17 + 0x1p-23);
    }
}

TEST_CASE(
    "prior lanes forward: every lane is the fp32 value rounded once, the key bias split into hi and what hi "
    "leaves",
    "[prior]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", " << name_of(dtype) << ", seed " << seed);
    const LaneShape shape{2, 65, 3, 2, 8, 4};
    const LanesFixture fixture(*device, rng, shape, dtype);
    device->run(fixture.operation());
    const std::vector<double> k = values_of(*device, fixture.qkv.tensor().select(2, 1)),
                              bias = fixture.key_bias.values(), table = fixture.fourier.values();
    std::size_t wrong = 0, at = static_cast<std::size_t>(shape.content);
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t t = shape.first_position; t < shape.first_position + shape.rows; ++t)
        for (std::int64_t h = 0; h < shape.heads; ++h, at += static_cast<std::size_t>(shape.head_dim())) {
          for (std::int64_t lane = 0; lane < 2 * shape.modes; ++lane)
            wrong += k[at + lane] != rounded_to(dtype, table[t * 2 * shape.modes + lane]);
          const float x = static_cast<float>(bias[h * shape.table_rows() + t]) /
                          (fixture.scale * PriorLanesForward::key_bias_unit);
          const double high = rounded_to(dtype, x);
          wrong += k[at + 2 * shape.modes] != high;
          wrong += k[at + 2 * shape.modes + 1] != rounded_to(dtype, x - high);
        }
    CHECK(wrong == 0);
  }
}

TEST_CASE("prior lanes forward: q alone and k alone get the lanes they get together", "[prior]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", " << name_of(dtype) << ", seed " << seed);
    LanesFixture fixture(*device, rng, {2, 33, 3, 2, 8, 4}, dtype);
    const std::vector<double> poisoned = fixture.qkv.values();
    device->run(fixture.operation());
    const std::vector<double> together = fixture.qkv.values();
    for (const std::size_t only : {0, 1}) {
      fixture.qkv.set(poisoned);
      PriorLanesForward op = fixture.operation();
      (only == 0 ? op.k : op.q) = {};
      device->run(op);
      const std::vector<double> alone = fixture.qkv.values();
      bool same = true, absent_untouched = true;
      for (std::size_t i = 0; i < alone.size(); ++i)
        if (fixture.is_lane(i)) {
          if (fixture.part(i) == only)
            same = same && alone[i] == together[i];
          else
            absent_untouched = absent_untouched && std::isnan(alone[i]);
        }
      CHECK(same);
      CHECK(absent_untouched);
    }
  }
}

TEST_CASE("prior lanes forward: fewer heads of k get the lanes and the key bias of their own head",
          "[prior]") {
  for (const auto& [name, dtype] : variants())
    for (const auto& [heads, key_heads] : {std::pair<std::int64_t, std::int64_t>{6, 2}, {5, 1}}) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", " << name_of(dtype) << ", seed " << seed << ", " << heads << " and " << key_heads);
      // The lanes of q do not depend on the key bias, those of k on nothing else that a head has.
      const LanesFixture of_queries(*device, rng, {2, 33, heads, 2, 8, 4}, dtype),
          of_keys(*device, rng, {2, 33, key_heads, 2, 8, 4}, dtype);
      const Operand q(*device, dtype, {2, 33, heads, 14}, "q"),
          k(*device, dtype, {2, 33, key_heads, 14}, "k");
      PriorLanesForward op = of_queries.operation();
      op.q = q;
      op.k = k;
      op.key_bias = of_keys.key_bias;
      device->run(op);
      device->run(of_queries.operation());
      device->run(of_keys.operation());
      const auto lanes = [&](const Tensor& x) { return values_of(*device, x.slice(3, 6, 8)); };
      CHECK((lanes(q) == lanes(of_queries.qkv.tensor().select(2, 0))));
      CHECK((lanes(k) == lanes(of_keys.qkv.tensor().select(2, 1))));
    }
}

TEST_CASE("fourier table and prior lanes forward: the same bits in any order of threads", "[prior]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", " << name_of(dtype) << ", seed " << seed);
    LanesFixture fixture(*device, rng, {2, 65, 3, 2, 7, 4}, dtype);
    const std::vector<double> poisoned = fixture.qkv.values();
    const Operand frequency = Operand::of(*device, fixture.frequency, {2}, "frequency", DType::f64);
    const Operand positions = positions_operand(*device, fixture.positions);
    check_schedules(name, [&] {
      fixture.qkv.set(poisoned);
      device->run(FourierTable{fixture.fourier, frequency, positions});
      device->run(fixture.operation());
      const Tensor lanes =
          fixture.qkv.tensor().slice(2, 0, 2).slice(4, fixture.shape.content, fixture.shape.lane_dim);
      return values_of(*device, lanes);
    });
  }
}
