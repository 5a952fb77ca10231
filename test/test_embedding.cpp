#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/catch.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using namespace goat;
using namespace goat::test;

namespace {

using Values = std::vector<double>;

struct Shape {
  std::int64_t tokens, vocab, width;
};

std::vector<Shape> shapes() {
  // The last two: more columns than the threads of a block take at a time, in vectors and one by one.
  std::vector<Shape> all{{130, 7, 384}, {300, 5000, 65}, {40, 3, 2064}, {40, 3, 261}};
  for (const std::int64_t tokens : {1, 3, 17, 130})
    for (const std::int64_t vocab : {1, 2, 50})
      for (const std::int64_t width : {1, 3, 17, 65, 130}) all.push_back({tokens, vocab, width});
  return all;
}

Values random_tokens(Rng& rng, const Shape& s) {
  std::uniform_int_distribution<std::int64_t> uniform(0, s.vocab - 1);
  Values tokens(static_cast<std::size_t>(s.tokens));
  for (double& token : tokens) token = static_cast<double>(uniform(rng));
  tokens.back() = static_cast<double>(s.vocab - 1);
  return tokens;
}

std::size_t at(double row, std::size_t column, std::int64_t width) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) + column;
}

Values forward(const Shape& s, const Values& tokens, const Values& table) {
  Values out;
  for (const double token : tokens)
    for (std::size_t c = 0; c < static_cast<std::size_t>(s.width); ++c)
      out.push_back(table[at(token, c, s.width)]);
  return out;
}

// start + gradient; with magnitudes, the sums of absolute values.
Values backward(const Shape& s, const Values& start, const Values& dout, const Values& tokens,
                bool magnitudes) {
  Values sum = start;
  if (magnitudes)
    for (double& value : sum) value = std::abs(value);
  for (std::size_t n = 0; n < tokens.size(); ++n)
    for (std::size_t c = 0; c < static_cast<std::size_t>(s.width); ++c) {
      const double term = dout[at(static_cast<double>(n), c, s.width)];
      sum[at(tokens[n], c, s.width)] += magnitudes ? std::abs(term) : term;
    }
  return sum;
}

}  // namespace

TEST_CASE("embedding forward: copies the rows of the table exactly") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.tokens << ", V "
                     << s.vocab << ", C " << s.width);
      const auto table = Operand::normal(*device, rng, {s.vocab, s.width}, "table", 1, dtype);
      const auto tokens = Operand::of(*device, random_tokens(rng, s), {s.tokens}, "tokens", DType::i32);
      const Operand out(*device, dtype, {s.tokens, s.width}, "out");
      device->run(EmbeddingForward{out, tokens, table});
      CHECK(out.values() == forward(s, tokens.values(), table.values()));
    }
  }
}

TEST_CASE(
    "embedding backward: adds to what is there, matches float64 and leaves rows without a token alone") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    for (const Shape& s : shapes()) {
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed << ", N " << s.tokens << ", V "
                     << s.vocab << ", C " << s.width);
      const auto dtable = Operand::normal(*device, rng, {s.vocab, s.width}, "dtable", 3);
      const auto dout = Operand::normal(*device, rng, {s.tokens, s.width}, "dout", 1, dtype);
      const Values ids = random_tokens(rng, s), before = dtable.values();
      const auto tokens = Operand::of(*device, ids, {s.tokens}, "tokens", DType::i32);
      device->run(EmbeddingBackward{dtable, dout, tokens});
      const Values after = dtable.values();
      CHECK_FP32(after, backward(s, before, dout.values(), ids, false),
                 backward(s, before, dout.values(), ids, true));
      const Values named =
          backward(s, Values(before.size(), 0.0), Values(dout.values().size(), 1.0), ids, false);
      bool untouched = true;
      for (std::size_t i = 0; i < after.size(); ++i)
        untouched = untouched && (named[i] > 0 || after[i] == before[i]);
      CHECK(untouched);
    }
  }
}

TEST_CASE("embedding backward: one token repeated throughout the batch matches float64") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{2000, 9, 130};
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    const auto dtable = Operand::zeros(*device, {s.vocab, s.width}, "dtable");
    const auto dout = Operand::normal(*device, rng, {s.tokens, s.width}, "dout", 1, dtype);
    const Values ids(static_cast<std::size_t>(s.tokens), 4.0),
        zeros(static_cast<std::size_t>(s.vocab * s.width), 0.0);
    const auto tokens = Operand::of(*device, ids, {s.tokens}, "tokens", DType::i32);
    device->run(EmbeddingBackward{dtable, dout, tokens});
    CHECK_FP32(dtable.values(), backward(s, zeros, dout.values(), ids, false),
               backward(s, zeros, dout.values(), ids, true));
  }
}

TEST_CASE("embedding backward: adds in the order of n") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype));
    const double huge = 0x1p30;  // 1 is lost where it is added to it
    const auto dtable = Operand::zeros(*device, {3, 1}, "dtable");
    const auto tokens = Operand::of(*device, {0, 2, 2, 0, 0, 2}, {6}, "tokens", DType::i32);
    const auto dout = Operand::of(*device, {huge, huge, 1, -huge, 1, -huge}, {6, 1}, "dout", dtype);
    device->run(EmbeddingBackward{dtable, dout, tokens});
    CHECK(dtable.values() == Values{1, 0, 0});
  }
}

TEST_CASE("embedding backward: common tokens among rare ones, in a large vocabulary, match float64") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  const Shape s{1700, 70000,
                24};  // three digits of the sort; runs that begin, end and lie anywhere in a chunk
  std::geometric_distribution<int> geometric(0.3);
  std::uniform_int_distribution<int> uniform(0, 69999);
  Values ids;
  for (std::int64_t n = 0; n < s.tokens; ++n)
    ids.push_back(n % 3 == 0 ? uniform(rng) : 65000 - 300 * geometric(rng));
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
    const auto dtable = Operand::normal(*device, rng, {s.vocab, s.width}, "dtable", 3);
    const auto dout = Operand::normal(*device, rng, {s.tokens, s.width}, "dout", 1, dtype);
    const Values before = dtable.values();
    const auto tokens = Operand::of(*device, ids, {s.tokens}, "tokens", DType::i32);
    device->run(EmbeddingBackward{dtable, dout, tokens});
    CHECK_FP32(dtable.values(), backward(s, before, dout.values(), ids, false),
               backward(s, before, dout.values(), ids, true));
  }
}

TEST_CASE("embedding: no tokens are no work") {
  for (const auto& [name, dtype] : variants()) {
    const auto device = open_tested(name);
    INFO("device " << name << ", " << name_of(dtype));
    const auto table = Operand::zeros(*device, {2, 3}, "table", dtype),
               dtable = Operand::of(*device, {1, 2, 3, 4, 5, 6}, {2, 3}, "dtable");
    const Operand none(*device, dtype, {0, 3}, "none"), tokens(*device, DType::i32, {0}, "tokens");
    device->run(EmbeddingForward{none, tokens, table});
    device->run(EmbeddingBackward{dtable, none, tokens});
    CHECK(dtable.values() == Values{1, 2, 3, 4, 5, 6});
  }
}

TEST_CASE("embedding: bitwise the same in any order of the threads") {
  const auto seed = fresh_seed();
  for (const Shape& s : {Shape{1031, 40, 197}, Shape{700, 300, 64}}) {
    for (const auto& [name, dtype] : variants()) {
      const auto device = open_tested(name);
      INFO("device " << name << ", " << name_of(dtype) << ", seed " << seed);
      check_schedules(name, [&, type = dtype] {
        Rng rng(seed);
        const auto dtable = Operand::normal(*device, rng, {s.vocab, s.width}, "dtable");
        const auto dout = Operand::normal(*device, rng, {s.tokens, s.width}, "dout", 1, type);
        const auto tokens = Operand::of(*device, random_tokens(rng, s), {s.tokens}, "tokens", DType::i32);
        device->run(EmbeddingBackward{dtable, dout, tokens});
        const auto table = Operand::normal(*device, rng, {s.vocab, s.width}, "table", 1, type);
        device->run(EmbeddingForward{dout, tokens, table});
        return concatenated({dtable.values(), dout.values()});
      });
    }
  }
}

TEST_CASE("embedding: the float64 gradient is the derivative of the float64 forward") {
  const auto seed = fresh_seed();
  Rng rng(seed);
  std::normal_distribution<double> normal;
  const Shape s{5, 3, 2};
  const Values tokens{2, 0, 2, 2, 0};
  Values table(6), dout(10);
  for (double& value : table) value = normal(rng);
  for (double& value : dout) value = normal(rng);
  const auto objective = [&] {
    const Values out = forward(s, tokens, table);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  const Values gradient = backward(s, Values(6, 0.0), dout, tokens, false);
  INFO("seed " << seed);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const double value = table[i], step = 1e-3;
    table[i] = value + step;
    const double above = objective();
    table[i] = value - step;
    const double below = objective();
    table[i] = value;
    CHECK(gradient[i] == Approx((above - below) / (2 * step)).margin(1e-9));
  }
}

TEST_CASE("embedding: the CPU refuses a token outside the table, names it and writes nothing") {
  const auto device = open_tested("cpu");
  const auto table = Operand::zeros(*device, {7, 4}, "table");
  const auto rows = Operand::zeros(*device, {3, 4}, "out");
  for (const double bad : {-1.0, 7.0, 2147483647.0}) {
    const auto tokens = Operand::of(*device, {0, 6, bad}, {3}, "tokens", DType::i32);
    const std::string what = "tokens[2] = " + std::to_string(static_cast<std::int64_t>(bad));
    CHECK_THROWS_AS(device->run(EmbeddingForward{rows, tokens, table}), std::out_of_range);
    CHECK_THROWS_WITH(device->run(EmbeddingForward{rows, tokens, table}), ContainsSubstring(what));
    CHECK_THROWS_AS(device->run(EmbeddingBackward{table, rows, tokens}), std::out_of_range);
    CHECK_THROWS_WITH(device->run(EmbeddingBackward{table, rows, tokens}), ContainsSubstring(what));
  }
  CHECK(rows.values() == Values(12, 0.0));
  CHECK(table.values() == Values(28, 0.0));
}
