// Rotary position embedding against float64, and what makes it a position embedding: rotations whose inner
// products depend on distances alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/prior_oracle.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using namespace goat;
using namespace goat::test;

namespace {
// base^(-2r/d_h) (Su et al. 2021).
std::vector<double> rope_frequencies(std::int64_t head_dim) {
  std::vector<double> frequency;
  for (std::int64_t r = 0; r < head_dim / 2; ++r)
    frequency.push_back(std::pow(10000.0, -2.0 * static_cast<double>(r) / static_cast<double>(head_dim)));
  return frequency;
}

// (cos, sin) [rows, d_h/2, 2].
Operand rope_table(Device& device, std::int64_t rows, std::int64_t head_dim) {
  const std::vector<double> frequency = rope_frequencies(head_dim);
  std::vector<double> table;
  for (std::int64_t t = 0; t < rows; ++t)
    for (const double w : frequency)
      for (const double value : fourier_pair(w, static_cast<double>(t))) table.push_back(value);
  return Operand::of(device, table, {rows, head_dim / 2, 2}, "fourier");
}

struct RopeShape {
  std::int64_t batch, rows, heads, head_dim, first_position;
  std::int64_t before = 0;  // elements of a row before its first head: 1 leaves the rows misaligned
};
const std::vector<RopeShape> rope_shapes = {
    {1, 1, 1, 2, 0}, {2, 3, 2, 6, 1},   {3, 65, 3, 16, 5}, {1, 9, 3, 64, 100},   {2, 3, 2, 24, 0},
    {1, 2, 5, 8, 3}, {2, 3, 12, 64, 0}, {1, 2, 40, 14, 0}, {1, 3, 2, 128, 1000}, {2, 3, 2, 16, 0, 1}};

std::string describe(const RopeShape& s) {
  std::string text = "B T H d_h first before =";
  for (const std::int64_t extent : {s.batch, s.rows, s.heads, s.head_dim, s.first_position, s.before})
    text.append(" ").append(std::to_string(extent));
  return text;
}

// q, k and v packed into rows [B, T, before + 3 H d_h] of random numbers.
struct RopeFixture {
  RopeShape shape;
  Operand packed, fourier;

  RopeFixture(Device& device, Rng& rng, const RopeShape& s, DType dtype)
      : shape(s),
        packed(Operand::normal(device, rng, {s.batch, s.rows, s.before + 3 * s.heads * s.head_dim}, "packed",
                               1, dtype)),
        fourier(rope_table(device, s.first_position + s.rows + 2, s.head_dim)) {}

  Tensor part(std::int64_t which) const {  // [B, T, H, d_h]
    Tensor heads = packed.tensor().slice(2, shape.before + which * shape.heads * shape.head_dim,
                                         shape.heads * shape.head_dim);
    heads.rank = 4;
    heads.shape = {shape.batch, shape.rows, shape.heads, shape.head_dim};
    heads.stride = {heads.stride[0], heads.stride[1], shape.head_dim, 1};
    return heads;
  }
  Rope operation(bool backward = false) const {
    return {part(0), part(1), fourier, shape.first_position, backward};
  }

  // The pair (x_r, x_{r + d_h/2}) that element i of `packed` is in: index of the first and whether i is the
  // second; r and t.
  struct Place {
    bool rotated;
    std::size_t first, second, r, t;
  };
  Place place(std::size_t i) const {
    const auto d = static_cast<std::size_t>(shape.head_dim),
               row = static_cast<std::size_t>(packed.tensor().shape[2]),
               rows = static_cast<std::size_t>(shape.rows);
    const std::size_t column = i % row;
    if (column < static_cast<std::size_t>(shape.before)) return {false, i, i, 0, 0};
    const std::size_t of_heads = column - static_cast<std::size_t>(shape.before), r = of_heads % (d / 2),
                      head = i - of_heads % d;
    return {of_heads < 2 * static_cast<std::size_t>(shape.heads) * d, head + r, head + r + d / 2, r,
            i / row % rows};
  }

  // Rotated in float64; terms: the sum of the absolute values of what was added up.
  std::vector<double> oracle(const std::vector<double>& x, bool backward, std::vector<double>* terms) const {
    const std::vector<double> table = fourier.values();
    std::vector<double> out = x;
    *terms = absolute(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Place at = place(i);
      if (!at.rotated) continue;
      const std::size_t turn = 2 * ((at.t + static_cast<std::size_t>(shape.first_position)) *
                                        static_cast<std::size_t>(shape.head_dim / 2) +
                                    at.r);
      const double cosine = table[turn], sine = backward ? -table[turn + 1] : table[turn + 1],
                   a = x[at.first], b = x[at.second];
      out[i] = i == at.first ? a * cosine - b * sine : b * cosine + a * sine;
      (*terms)[i] = i == at.first ? std::abs(a * cosine) + std::abs(b * sine)
                                  : std::abs(b * cosine) + std::abs(a * sine);
    }
    return out;
  }
};

// Largest error that a rotation and its inverse leave, relative to the length of the pair.
double rounding(DType dtype) { return 8 * 0x1p-24 + (dtype == DType::bf16 ? 4 * 0x1p-9 : 0); }
}  // namespace

TEST_CASE("rope: forward and backward match float64, what is not q or k stays as it was bit for bit",
          "[rope]") {
  for (const auto& [name, dtype] : variants())
    for (const RopeShape& shape : rope_shapes)
      for (const bool backward : {false, true}) {
        const auto device = open_tested(name);
        const std::uint64_t seed = fresh_seed();
        Rng rng(seed);
        INFO(name << ", " << name_of(dtype) << ", seed " << seed << ", " << describe(shape)
                  << (backward ? ", backward" : ""));
        const RopeFixture fixture(*device, rng, shape, dtype);
        const std::vector<double> before = fixture.packed.values();
        device->run(fixture.operation(backward));
        const std::vector<double> after = fixture.packed.values();
        std::vector<double> terms;
        const std::vector<double> want = fixture.oracle(before, backward, &terms);
        CHECK_MATCHES(dtype, after, want, terms);
        bool untouched = true;
        for (std::size_t i = 0; i < after.size(); ++i)
          untouched = untouched && (fixture.place(i).rotated || after[i] == before[i]);
        CHECK(untouched);
      }
}

TEST_CASE("rope: a worked example", "[rope]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO(name << ", " << name_of(dtype));
    const Operand fourier = Operand::of(*device, {9, 9, 9, 9, 0, 1, 0.6, 0.8}, {2, 2, 2},
                                        "fourier");  // row 1: a quarter turn, and 3-4-5
    const Operand q = Operand::of(*device, {1, 2, 3, 4}, {1, 1, 1, 4}, "q", dtype),
                  k = Operand::of(*device, {1, 5, 0, 0}, {1, 1, 1, 4}, "k", dtype);
    device->run(Rope{q, k, fourier, 1, false});
    const std::vector<double> want_q = {-3, -2, 1, 4},
                              want_k = {0, 3, 1, 4};  // pairs (1, 3), (2, 4) and (1, 0), (5, 0)
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(std::abs(q.values()[i] - want_q[i]) <= 1e-6);
      CHECK(std::abs(k.values()[i] - want_k[i]) <= 1e-6);
    }
  }
}

TEST_CASE("rope: backward undoes forward, and neither changes the length of a pair", "[rope]") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", " << name_of(dtype) << ", seed " << seed);
    const RopeFixture fixture(*device, rng, {2, 33, 3, 64, 1000}, dtype);
    const std::vector<double> before = fixture.packed.values();
    device->run(fixture.operation());
    const std::vector<double> turned = fixture.packed.values();
    device->run(fixture.operation(true));
    const std::vector<double> restored = fixture.packed.values();
    double error = 0, stretch = 0, turn = 0;  // relative to the length of the pair
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto [rotated, first, second, r, t] = fixture.place(i);
      const double norm = std::hypot(before[first], before[second]);
      error = std::max(error, std::abs(restored[i] - before[i]) / norm);
      stretch = std::max(stretch, std::abs(std::hypot(turned[first], turned[second]) / norm - 1));
      turn = std::max(turn, std::abs(turned[i] - before[i]) / norm);
    }
    CHECK(error <= rounding(dtype));
    CHECK(stretch <= rounding(dtype));
    CHECK(turn > 1);
  }
}

TEST_CASE("rope: <q_i, k_j> depends on the distance i - j alone, up to position 32767", "[rope]") {
  constexpr std::int64_t length = 32768, head_dim = 64, rows = 17;
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    const std::uint64_t seed = fresh_seed();
    Rng rng(seed);
    INFO(name << ", " << name_of(dtype) << ", seed " << seed);
    const Operand fourier(*device, DType::f32, {length, head_dim / 2, 2}, "fourier");
    device->run(FourierTable{
        fourier, Operand::of(*device, rope_frequencies(head_dim), {head_dim / 2}, "frequency", DType::f64),
        Operand::of(*device, Positions::sequence(0, length).values, {length, 1}, "positions", DType::i32)});
    // the same query and the same key at every row
    const std::vector<double> query = Operand::normal(*device, rng, {head_dim}, "query", 1, dtype).values();
    std::vector<double> key = Operand::normal(*device, rng, {head_dim}, "key", 0.5, dtype).values();
    // A key that resembles the query: their product is large at distance 0, and falls.
    for (std::int64_t x = 0; x < head_dim; ++x) key[x] += query[x];
    std::vector<double> queries, keys;
    for (std::int64_t t = 0; t < rows; ++t) {
      queries.insert(queries.end(), query.begin(), query.end());
      keys.insert(keys.end(), key.begin(), key.end());
    }
    double magnitude = 0;
    for (std::int64_t r = 0; r < head_dim / 2; ++r)
      magnitude += std::hypot(query[r], query[r + head_dim / 2]) * std::hypot(key[r], key[r + head_dim / 2]);

    std::vector<double> at_origin(rows);  // by distance
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1000}, length - rows}) {
      const Operand q = Operand::of(*device, queries, {1, rows, 1, head_dim}, "q", dtype),
                    k = Operand::of(*device, keys, {1, rows, 1, head_dim}, "k", dtype);
      device->run(Rope{q, k, fourier, first, false});
      const std::vector<double> turned_q = q.values(), turned_k = k.values();
      double worst = 0, largest = 0, smallest = 0;
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j <= i; ++j) {
          double product = 0;
          for (std::int64_t x = 0; x < head_dim; ++x)
            product += turned_q[i * head_dim + x] * turned_k[j * head_dim + x];
          if (first == 0 && j == 0) at_origin[i] = product;
          worst = std::max(worst, std::abs(product - at_origin[i - j]) / magnitude);
          largest = std::max(largest, product);
          smallest = std::min(smallest, product);
        }
      INFO("first position " << first);
      CHECK(worst <= 2 * rounding(dtype));
      CHECK((largest - smallest) / magnitude > 10 * rounding(dtype));  // and it does depend on it
    }
  }
}

TEST_CASE("rope: q alone and k alone are rotated as they are together, the same bits in any order of threads",
          "[rope]") {
  for (const auto& [name, dtype] : variants())
    for (const RopeShape& shape : {RopeShape{2, 9, 3, 16, 2}, RopeShape{2, 9, 3, 6, 2}}) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", " << name_of(dtype) << ", seed " << seed << ", " << describe(shape));
      RopeFixture fixture(*device, rng, shape, dtype);
      const std::vector<double> before = fixture.packed.values();
      check_schedules(name, [&] {
        fixture.packed.set(before);
        device->run(fixture.operation());
        return fixture.packed.values();
      });
      const std::vector<double> q = values_of(*device, fixture.part(0)),
                                k = values_of(*device, fixture.part(1));
      fixture.packed.set(before);
      const std::vector<double> k_before = values_of(*device, fixture.part(1));
      device->run(Rope{fixture.part(0), {}, fixture.fourier, shape.first_position, false});
      CHECK(values_of(*device, fixture.part(0)) == q);
      CHECK(values_of(*device, fixture.part(1)) == k_before);
      device->run(Rope{{}, fixture.part(1), fixture.fourier, shape.first_position, false});
      CHECK(values_of(*device, fixture.part(0)) == q);
      CHECK(values_of(*device, fixture.part(1)) == k);
    }
}

TEST_CASE("rope: q and k of different numbers of heads are rotated as they are alone", "[rope]") {
  for (const auto& [name, dtype] : variants())
    for (const auto& [heads, key_heads] : {std::pair<std::int64_t, std::int64_t>{6, 2}, {5, 1}, {3, 1}})
      for (const std::int64_t head_dim : {16, 6}) {
        const auto device = open_tested(name);
        Rng rng(fresh_seed());
        INFO(name << ", " << name_of(dtype) << ", " << heads << " and " << key_heads << " heads");
        const Operand q = Operand::normal(*device, rng, {2, 9, heads, head_dim}, "q", 1, dtype),
                      k = Operand::normal(*device, rng, {2, 9, key_heads, head_dim}, "k", 1, dtype),
                      q_alone = Operand::of(*device, q.values(), {2, 9, heads, head_dim}, "q", dtype),
                      k_alone = Operand::of(*device, k.values(), {2, 9, key_heads, head_dim}, "k", dtype),
                      fourier = rope_table(*device, 12, head_dim);
        device->run(Rope{q, k, fourier, 3, false});
        device->run(Rope{q_alone, {}, fourier, 3, false});
        device->run(Rope{k_alone, {}, fourier, 3, false});  // as queries, which have their own count
        CHECK(q.values() == q_alone.values());
        CHECK(k.values() == k_alone.values());
      }
}
