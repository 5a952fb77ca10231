// SumParts and WeightsHash, bit by bit: the order of the additions is part of what SumParts promises.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "test/catch.h"
#include "test/operand.h"
#include "test/schedules.h"
#include "test/tested_device.h"

using goat::Device;
using goat::DType;
using goat::SumParts;
using goat::Tensor;
using goat::WeightsHash;
using goat::test::Operand;
using goat::test::reduced;
using goat::test::Rng;

namespace {
using Index = std::int64_t;
using Values = std::vector<double>;

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

const std::vector<Index> sizes = {0, 1, 3, 4, 63, 1024, 1024 + 5, 2 * 1024 + 77};

// The definition: the largest power of two below N, then the others.
float tree_sum(const std::vector<float>& terms) {
  if (terms.size() == 1) return terms[0];
  std::size_t first = 1;
  while (2 * first < terms.size()) first *= 2;
  const auto middle = terms.begin() + static_cast<std::ptrdiff_t>(first);
  return tree_sum({terms.begin(), middle}) + tree_sum({middle, terms.end()});
}

// sums[i] of parts [N, n], row-major.
Values tree_sums(const Values& parts, Index count) {
  const std::size_t width = parts.size() / static_cast<std::size_t>(count);
  Values sums;
  for (std::size_t i = 0; i < width; ++i) {
    std::vector<float> terms;
    for (std::size_t at = i; at < parts.size(); at += width) terms.push_back(static_cast<float>(parts[at]));
    sums.push_back(tree_sum(terms));
  }
  return sums;
}

constexpr DType dtypes[] = {DType::f32, DType::bf16};

// Values of different sizes, so that the order of the additions shows in their rounding.
Operand random_parts(Device& device, Rng& rng, Index count, Index width, DType dtype = DType::f32) {
  auto parts = Operand::normal(device, rng, {count, width}, "parts", 1, dtype);
  Values values = parts.values();
  for (double& value : values) value = std::ldexp(value, static_cast<int>(rng() % 12));
  parts.set(values);
  return parts;
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 8) == 0);
}

// A hash in device memory.
class DeviceHash {
 public:
  explicit DeviceHash(Device& device, std::uint64_t start = 0)
      : device_(device), buffer_(device, sizeof start) {
    device.upload(buffer_.data(), &start, sizeof start);
  }
  DeviceHash& add(const Tensor& x, Index first_element = 0) {
    device_.run(WeightsHash{static_cast<std::uint64_t*>(buffer_.data()), x, first_element});
    return *this;
  }
  std::uint64_t value() const {
    std::uint64_t value = 0;
    device_.download(&value, buffer_.data(), sizeof value);
    return value;
  }

 private:
  Device& device_;
  goat::DeviceBuffer buffer_;
};

std::uint64_t hash_of(Device& device, const Tensor& x, Index first_element = 0) {
  return DeviceHash(device).add(x, first_element).value();
}

// The definition, from the bits of the elements.
std::uint64_t expected_hash(const Values& values, DType dtype, std::uint64_t first_element = 0) {
  std::uint64_t sum = 0;
  for (const double value : values) {
    std::uint64_t z = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    if (dtype == DType::bf16) z >>= 16;
    z += first_element++ * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    sum += z ^ (z >> 31);
  }
  return sum;
}

// Bits of elements in device memory.
template <class Bits>
std::vector<Bits> bits_of(Device& device, const Tensor& x) {
  std::vector<Bits> bits(static_cast<std::size_t>(x.elements()));
  device.download(bits.data(), x.data, bits.size() * sizeof(Bits));
  return bits;
}
}  // namespace

TEST_CASE("sum parts: adds in the binary-counter tree, to the bit, for any number of parts") {
  on_every_device([](const std::string&, Device& device, Rng& rng) {
    for (const DType dtype : dtypes)
      for (const Index count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 23, 31, 100, 1024})
        for (const Index width : sizes) {
          if (count > 31 && width > 63) continue;
          if (reduced() && count > 9 && width != 3) continue;
          INFO(goat::name_of(dtype) << ", N = " << count << ", n = " << width);
          const Operand parts = random_parts(device, rng, count, width, dtype),
                        out(device, DType::f32, {width}, "out");
          device.run(SumParts{out, parts});
          const Values got = out.values(), values = parts.values();
          CHECK(same_bits(got, tree_sums(values, count)));
          Values exact(static_cast<std::size_t>(width)), terms = exact;
          for (std::size_t i = 0; i < values.size(); ++i) {
            exact[i % exact.size()] += values[i];
            terms[i % exact.size()] += std::abs(values[i]);
          }
          CHECK_FP32(got, exact, terms);
        }
  });
}

TEST_CASE("sum parts: whole subtrees may be added first") {
  on_every_device([](const std::string&, Device& device, Rng& rng) {
    const Index width = 101;
    for (const Index count : {4, 6, 8, 12, 16, 40})
      for (Index subtree = 2; count % subtree == 0; subtree *= 2) {
        INFO("N = " << count << " from sums of " << subtree);
        const Operand parts = random_parts(device, rng, count, width);
        const Operand sums(device, DType::f32, {count / subtree, width}, "sums");
        const Operand whole(device, DType::f32, {width}, "whole"), out(device, DType::f32, {width}, "out");
        device.run(SumParts{whole, parts});
        for (Index i = 0; i < count / subtree; ++i)
          device.run(SumParts{sums.tensor().select(0, i), parts.tensor().slice(0, i * subtree, subtree)});
        device.run(SumParts{out, sums});
        CHECK(same_bits(out.values(), whole.values()));
      }
  });
}

TEST_CASE("sum parts: in place of any part, of rows with gaps, at any element") {
  on_every_device([](const std::string&, Device& device, Rng& rng) {
    for (const Index count : {1, 2, 3, 5, 8, 11, 16})
      for (const Index width : {1, 64, 1500}) {
        const Index place = static_cast<Index>(rng() % static_cast<std::uint64_t>(count)),
                    first = static_cast<Index>(rng() % 5);
        INFO("N = " << count << ", n = " << width << ", in place of " << place << ", from " << first);
        const Operand memory = random_parts(device, rng, count, width + 8);
        const Tensor parts = memory.tensor().slice(1, first, width);
        Values want = memory.values();
        const Values sums = tree_sums(goat::test::values_of(device, parts), count);
        std::copy(sums.begin(), sums.end(), want.begin() + place * (width + 8) + first);
        device.run(SumParts{parts.select(0, place), parts});
        CHECK(same_bits(memory.values(), want));
      }
  });
}

TEST_CASE("sum parts: bf16 parts in rows with gaps, at any element, to a sum at any element") {
  on_every_device([](const std::string&, Device& device, Rng& rng) {
    for (const Index count : {1, 2, 7, 8, 17})
      for (const Index gap : {0, 1, 4, 8})  // rows of 16-byte vectors only where it is 0 or 8
        for (const Index first : {0, 3, 4, 8})
          for (const Index out_first : {0, 2, 4}) {
            const Index width = 64 - first, stride = 64 + gap;
            INFO("N = " << count << ", stride " << stride << ", from " << first << " to " << out_first);
            const Operand memory = random_parts(device, rng, count, stride, DType::bf16),
                          out(device, DType::f32, {width + out_first}, "out");
            const Tensor parts = memory.tensor().slice(1, first, width);
            const Values before = memory.values();
            device.run(SumParts{out.tensor().slice(0, out_first, width), parts});
            Values got = out.values();
            CHECK(std::all_of(got.begin(), got.begin() + out_first, [](double v) { return std::isnan(v); }));
            got.erase(got.begin(), got.begin() + out_first);
            CHECK(same_bits(got, tree_sums(goat::test::values_of(device, parts), count)));
            CHECK(same_bits(memory.values(), before));
          }
  });
}

TEST_CASE("sum parts: one bf16 part is widened, whatever its bits") {
  on_every_device([](const std::string&, Device& device, Rng&) {
    const Index n = 1 << 16;
    std::vector<std::uint16_t> bits(n);
    std::iota(bits.begin(), bits.end(), std::uint16_t{0});
    for (const Index left_out : {0, 1}) {  // of an odd address, element by element
      const Operand parts(device, DType::bf16, {1, n}, "parts"),
          out(device, DType::f32, {n - left_out}, "out");
      device.upload(parts.tensor().data, bits.data(), 2 * bits.size());
      device.run(SumParts{out, parts.tensor().slice(1, left_out, n - left_out)});
      Index different = 0;
      auto want = static_cast<std::uint32_t>(left_out);
      for (const auto got : bits_of<std::uint32_t>(device, out)) different += got != want++ << 16;
      CHECK(different == 0);
    }
  });
}

TEST_CASE("sum parts: no zero is added; infinities, NaN and the smallest numbers arrive") {
  on_every_device([](const std::string&, Device& device, Rng&) {
    const double infinity = HUGE_VAL, smallest = 0x1p-133;  // the smallest of bf16
    for (const DType dtype : dtypes)
      for (const Index count : {1, 2, 3, 8, 17})
        for (const Index width : {5, 8}) {
          INFO(goat::name_of(dtype) << ", N = " << count << ", n = " << width);
          Values values(static_cast<std::size_t>(width * count), -0.0);
          values[1] = infinity;
          values[2] = std::nan("");
          for (std::size_t i = 3; i < values.size(); i += static_cast<std::size_t>(width))
            values[i] = smallest;
          values[4] = -0x1.FEp127;  // the largest of bf16
          const auto parts = Operand::of(device, values, {count, width}, "parts", dtype);
          const Operand out(device, DType::f32, {width}, "out");
          device.run(SumParts{out, parts});
          const Values got = out.values();
          CHECK(std::signbit(got[0]));
          CHECK(got[1] == infinity);
          CHECK(std::isnan(got[2]));
          CHECK(got[3] == static_cast<double>(count) * smallest);
          CHECK(got[4] == -0x1.FEp127);
        }
  });
}

TEST_CASE("weights hash: matches its definition, and adds to what is there") {
  on_every_device([](const std::string&, Device& device, Rng& rng) {
    for (const DType dtype : dtypes)
      for (const Index n : {0, 1, 3, 8, 257, 4099, 20011})
        for (const Index first : {Index{0}, Index{5}, (Index{1} << 40) + 3}) {
          INFO(goat::name_of(dtype) << ", n = " << n << ", first_element " << first);
          const auto x = Operand::normal(device, rng, {n}, "x", 1, dtype);
          const std::uint64_t start = rng(),
                              want = expected_hash(x.values(), dtype, static_cast<std::uint64_t>(first));
          CHECK(DeviceHash(device, start).add(x, first).value() == start + want);
        }
  });
}

TEST_CASE("weights hash: any shape and address; pieces add up to the whole") {
  on_every_device([](const std::string&, Device& device, Rng& rng) {
    for (const DType dtype : dtypes) {
      const auto x = Operand::normal(device, rng, {7, 3, 41}, "x", 1, dtype);
      const Tensor flat = x.tensor().reshape({861});
      const std::uint64_t whole = hash_of(device, x);
      CHECK(whole == hash_of(device, flat));
      DeviceHash pieces(device);
      std::vector<Index> borders = {0, 861, static_cast<Index>(rng() % 861), static_cast<Index>(rng() % 861)};
      std::sort(borders.begin(), borders.end());
      for (std::size_t i = borders.size() - 1; i > 0; --i)
        pieces.add(flat.slice(0, borders[i - 1], borders[i] - borders[i - 1]), borders[i - 1]);
      CHECK(pieces.value() == whole);
    }
  });
}

TEST_CASE("weights hash: shows one flipped bit, a lost element and elements that changed places") {
  on_every_device([](const std::string&, Device& device, Rng& rng) {
    for (const DType dtype : dtypes) {
      const Index n = 1237;
      const auto x = Operand::normal(device, rng, {n}, "x", 1, dtype);
      const std::uint64_t whole = hash_of(device, x);
      std::vector<unsigned char> bytes(x.tensor().bytes());
      device.download(bytes.data(), x.tensor().data, bytes.size());
      const auto hash_after = [&](std::vector<unsigned char> changed) {
        device.upload(x.tensor().data, changed.data(), changed.size());
        return hash_of(device, x);
      };
      for (int i = 0; i < 20; ++i) {
        auto changed = bytes;
        changed[rng() % changed.size()] ^= static_cast<unsigned char>(1 << rng() % 8);
        CHECK(hash_after(changed) != whole);
        changed = bytes;
        const std::size_t size = size_of(dtype), from = rng() % (n - 1) * size, to = (n - 1) * size;
        std::swap_ranges(&changed[from], &changed[from] + size, &changed[to]);
        if (changed != bytes) CHECK(hash_after(changed) != whole);
      }
      CHECK(hash_after(bytes) == whole);
      CHECK(hash_of(device, x.tensor().slice(0, 0, n - 1)) != whole);
      CHECK(hash_of(device, x, 1) != whole);
    }
  });
}

TEST_CASE("sum parts and weights hash: bitwise the same in any order of the threads") {
  on_every_device([](const std::string& name, Device& device, Rng& rng) {
    for (const DType dtype : dtypes) {
      const Operand parts = random_parts(device, rng, 11, 2001, dtype);
      goat::test::check_schedules(name, [&] {
        const Operand out(device, DType::f32, {2001}, "out");
        device.run(SumParts{out, parts});
        const std::uint64_t hash = hash_of(device, parts);
        return goat::test::concatenated(
            {out.values(), {static_cast<double>(hash >> 32), static_cast<double>(hash & 0xFFFFFFFFu)}});
      });
    }
  });
}
