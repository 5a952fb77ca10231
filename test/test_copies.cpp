// Fill and Cast: exact.
#include <bit>
#include <cmath>
#include <limits>

#include "test/catch.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using goat::Cast;
using goat::DType;
using goat::Fill;
using goat::test::Operand;
using goat::test::Rng;
using goat::test::rounded_to;

namespace {
using Values = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();
const std::vector<std::int64_t> sizes = {0, 1, 3, 7, 8, 64, 1001, 8192 + 13};

// Every device takes both dtypes here.
template <class Body>
void on_every_device(Body body) {
  for (const std::string& name : goat::test::device_names()) {
    const auto device = goat::test::open_tested(name);
    const auto seed = goat::test::fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    body(name, *device, rng);
  }
}
constexpr DType dtypes[] = {DType::f32, DType::bf16};

// The size of a bf16 number, by its bits. Behind the largest comes 2^128, which stands for infinity.
double size_of_bf16(std::uint16_t bits) {
  const int exponent = bits >> 7 & 0xFF, mantissa = bits & 0x7F;
  return exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
}

// Whether `rounded` is the nearest bf16 to an f32 number, the even one of two that are equally near; for NaN,
// whether it is one.
bool is_rounded(std::uint16_t rounded, std::uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  if (std::isnan(value)) return (rounded & 0x7F80) == 0x7F80 && (rounded & 0x7F) != 0;
  const auto below = static_cast<std::uint16_t>(bits >> 16), above = static_cast<std::uint16_t>(below + 1);
  if (std::isinf(value)) return rounded == below;
  const double size = std::abs(static_cast<double>(value)), to_below = size - size_of_bf16(below),
               to_above = size_of_bf16(above) - size;
  const bool up = to_above < to_below || (to_above == to_below && below % 2 != 0);
  return rounded == (up ? above : below);
}
}  // namespace

TEST_CASE("fill: writes the rounded value everywhere and nowhere else") {
  on_every_device([](const std::string&, goat::Device& device, Rng&) {
    for (const DType dtype : dtypes)
      for (const std::int64_t n : sizes)
        for (const float value : {0.0f, -1.5f, 0.1f, 1.00390625f,
                                  1.01171875f}) {  // the last two lie half way between two bf16 numbers
          INFO(goat::name_of(dtype) << ", n = " << n << ", value " << value);
          const Operand out(device, dtype, {n}, "out");
          device.run(Fill{out, value});
          CHECK(out.values() ==
                Values(static_cast<std::size_t>(n), rounded_to(dtype, static_cast<double>(value))));
        }
  });
}

TEST_CASE("cast: rounds to nearest, ties to even, between any two dtypes") {
  on_every_device([](const std::string&, goat::Device& device, Rng& rng) {
    for (const DType from : dtypes)
      for (const DType to : dtypes)
        for (const std::int64_t n : sizes) {
          INFO(goat::name_of(from) << " to " << goat::name_of(to) << ", n = " << n);
          const auto x = Operand::normal(device, rng, {n}, "x", 3, from);
          const Operand out(device, to, {n}, "out");
          device.run(Cast{out, x});
          CHECK(out.values() == rounded_to(to, x.values()));
        }
    // Ties, the largest numbers, the smallest, infinities, signed zeros.
    const Values edges = {1.00390625, 1.01171875, -1.00390625, 0x1.FEp127, 0x1.FFp127, -0x1.FFp127, 0x1p-126,
                          0x1p-133,   0x1p-134,   0x1.8p-134,  infinity,   -infinity,  0.0,         -0.0};
    const auto n = static_cast<std::int64_t>(edges.size());
    const auto x = Operand::of(device, edges, {n}, "edges");
    const Operand out(device, DType::bf16, {n}, "out");
    device.run(Cast{out, x});
    const Values got = out.values(), want = rounded_to(DType::bf16, edges);
    CHECK(got == want);
    CHECK(std::signbit(got.back()));
  });
}

TEST_CASE("cast: every bf16, and what lies just above it, is rounded to the nearer of its neighbours") {
  on_every_device([](const std::string&, goat::Device& device, Rng&) {
    std::vector<std::uint32_t> bits;
    for (std::uint32_t upper = 0; upper < 1u << 16; ++upper)
      for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
        if (!goat::test::reduced() || upper % 128 < 2 || upper % 128 > 125)
          bits.push_back(upper << 16 | lower);
    const auto n = static_cast<std::int64_t>(bits.size()) - 3;  // no multiple of 8
    for (const std::int64_t first : {0, 3}) {  // from 3 on one by one on a GPU, otherwise 8 at a time
      const Operand x(device, DType::f32, {n + 3}, "x"), out(device, DType::bf16, {n}, "out");
      device.upload(x.tensor().data, bits.data(), 4 * bits.size());
      device.run(Cast{out, x.tensor().slice(0, first, n)});
      std::vector<std::uint16_t> got(static_cast<std::size_t>(n));
      device.download(got.data(), out.tensor().data, 2 * got.size());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        wrong += !is_rounded(got[i], bits[i + static_cast<std::size_t>(first)]);
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("cast: NaN stays NaN, whatever its payload") {
  on_every_device([](const std::string&, goat::Device& device, Rng&) {
    const Operand poisoned(device, DType::f32, {9}, "all ones"), out(device, DType::bf16, {9}, "out");
    device.run(Fill{out, 0});
    device.run(Cast{out, poisoned});
    for (const double value : out.values()) CHECK(std::isnan(value));
    const std::uint32_t low_payload = 0x7F800001u;  // rounding as if it were a number would give infinity
    device.upload(poisoned.tensor().data, &low_payload, sizeof low_payload);
    device.run(Fill{out, 0});
    device.run(Cast{out, poisoned});
    CHECK(std::isnan(out.values()[0]));
  });
}

TEST_CASE("cast and fill: any shape, operands that start at any element, and a cast in place") {
  on_every_device([](const std::string&, goat::Device& device, Rng& rng) {
    const auto x = Operand::normal(device, rng, {3, 5, 7}, "x");
    const Operand out(device, DType::bf16, {3, 5, 7}, "out");
    device.run(Cast{out, x});
    CHECK(out.values() == rounded_to(DType::bf16, x.values()));

    const Values before = out.values();
    device.run(Cast{out, out});
    CHECK(out.values() == before);

    const auto row = Operand::normal(device, rng, {100}, "row");
    const Values values = row.values();
    const Operand half(device, DType::bf16, {100}, "half");
    device.run(Fill{half, 2});
    device.run(Cast{half.tensor().slice(0, 3, 90), row.tensor().slice(0, 5, 90)});
    device.run(Fill{half.tensor().slice(0, 95, 4), 7});
    Values want(100, 2.0);
    for (std::size_t i = 0; i < 90; ++i) want[3 + i] = rounded_to(DType::bf16, values[5 + i]);
    for (std::size_t i = 95; i < 99; ++i) want[i] = 7;
    CHECK(half.values() == want);
  });
}

TEST_CASE("cast: bitwise the same in any order of the threads") {
  on_every_device([](const std::string& name, goat::Device& device, Rng& rng) {
    const auto x = Operand::normal(device, rng, {2001}, "x");
    goat::test::check_schedules(name, [&] {
      const Operand out(device, DType::bf16, {2001}, "out");
      device.run(Fill{out, 1});
      device.run(Cast{out, x});
      return out.values();
    });
  });
}
