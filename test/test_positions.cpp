// Position embeddings: adding rows of a table to the stream, and their gradient.
#include <cmath>
#include <cstdint>
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
  std::int64_t sequences, length, width, rows, first;
};

// Of one token, of more sequences than a thread reads ahead, of more columns than a block takes at a time, in
// vectors and one by one.
const std::vector<Shape> shapes = {{1, 1, 1, 1, 0},    {3, 5, 17, 5, 0},  {2, 7, 16, 40, 33},
                                   {9, 3, 24, 4, 1},   {4, 2, 65, 2, 0},  {1, 33, 130, 90, 57},
                                   {2, 3, 2064, 5, 2}, {13, 2, 261, 3, 1}};

std::string describe(const Shape& s) {
  return "B " + std::to_string(s.sequences) + ", T " + std::to_string(s.length) + ", C " +
         std::to_string(s.width) + ", P " + std::to_string(s.rows) + ", first position " +
         std::to_string(s.first);
}

// Calls visit(place in the stream, place in the table) for each element of the stream.
template <class Visit>
void for_each_element(const Shape& s, std::int64_t first, Visit visit) {
  for (std::int64_t b = 0; b < s.sequences; ++b)
    for (std::int64_t t = 0; t < s.length; ++t)
      for (std::int64_t c = 0; c < s.width; ++c)
        visit(static_cast<std::size_t>((b * s.length + t) * s.width + c),
              static_cast<std::size_t>((first + t) * s.width + c));
}

double magnitude(double value, bool of_terms) { return of_terms ? std::abs(value) : value; }

Values added(const Shape& s, const Values& stream, const Values& table, bool of_terms) {
  Values out = stream;
  for_each_element(s, s.first, [&](std::size_t at, std::size_t row) {
    out[at] = magnitude(stream[at], of_terms) + magnitude(table[row], of_terms);
  });
  return out;
}

Values summed(const Shape& s, Values dtable, const Values& dstream, bool of_terms) {
  for (double& value : dtable) value = magnitude(value, of_terms);
  for_each_element(s, 0,
                   [&](std::size_t at, std::size_t row) { dtable[row] += magnitude(dstream[at], of_terms); });
  return dtable;
}

// body(device, name, dtype, shape, rng)
template <class Body>
void for_each_case(Body body) {
  for (const auto& [name, dtype] : variants())
    for (const Shape& s : shapes) {
      const auto device = open_tested(name);
      const std::uint64_t seed = fresh_seed();
      Rng rng(seed);
      INFO(name << ", " << name_of(dtype) << ", seed " << seed << ", " << describe(s));
      body(*device, name, dtype, s, rng);
    }
}

}  // namespace

TEST_CASE("positions forward: each row gets that of its position, from the first one on, rounded once") {
  for_each_case([](Device& device, const std::string&, DType dtype, const Shape& s, Rng& rng) {
    const auto stream = Operand::normal(device, rng, {s.sequences, s.length, s.width}, "stream", 1, dtype);
    const auto table = Operand::normal(device, rng, {s.rows, s.width}, "table");
    const Values before = stream.values(), rows = table.values();
    device.run(AddPositions{stream, table, s.first});
    CHECK_MATCHES(dtype, stream.values(), added(s, before, rows, false), added(s, before, rows, true));
    CHECK(table.values() == rows);
  });
}

TEST_CASE(
    "positions backward: adds each position's gradients of all sequences, leaves the other rows alone") {
  for_each_case([](Device& device, const std::string&, DType dtype, const Shape& s, Rng& rng) {
    const auto dstream = Operand::normal(device, rng, {s.sequences, s.length, s.width}, "dstream", 1, dtype);
    const auto dtable = Operand::normal(device, rng, {s.rows, s.width}, "dtable", 3);
    const Values before = dtable.values(), terms = dstream.values();
    device.run(AddPositionsBackward{dtable, dstream});
    const Values after = dtable.values();
    CHECK_FP32(after, summed(s, before, terms, false), summed(s, before, terms, true));
    const auto seen = static_cast<std::ptrdiff_t>(s.length * s.width);
    CHECK(Values(after.begin() + seen, after.end()) == Values(before.begin() + seen, before.end()));
  });
}

TEST_CASE("positions backward: adds in the order of the sequences, the same bits on every device") {
  for (const std::string& name : device_names()) {
    const auto device = open_tested(name);
    const auto dtable = Operand::of(*device, {1}, {1, 1}, "dtable");
    // 2^24 + 1 - 2^24 in fp32 is 0 or 1, by the order.
    const auto dstream = Operand::of(*device, {0x1p24, 1, -0x1p24, 0x1p-24, 2}, {5, 1, 1}, "dstream");
    device->run(AddPositionsBackward{dtable, dstream});
    float want = 1;
    for (const float term : {0x1p24f, 1.0f, -0x1p24f, 0x1p-24f, 2.0f}) want += term;
    CHECK(dtable.values() == Values{static_cast<double>(want)});
  }
}

TEST_CASE("positions: the same bits in any order of threads") {
  for_each_case([](Device& device, const std::string& name, DType dtype, const Shape& s, Rng& rng) {
    if (s.length * s.width > 700) return;
    auto stream = Operand::normal(device, rng, {s.sequences, s.length, s.width}, "stream", 1, dtype);
    auto table = Operand::normal(device, rng, {s.rows, s.width}, "table");
    const Values before = stream.values(), rows = table.values();
    check_schedules(name, [&] {
      stream.set(before);
      table.set(rows);
      device.run(AddPositions{stream, table, s.first});
      device.run(AddPositionsBackward{table, stream});
      Values all = stream.values();
      for (const double value : table.values()) all.push_back(value);
      return all;
    });
  });
}
