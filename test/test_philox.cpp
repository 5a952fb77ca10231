// Philox and what is built on it: uniform and normal numbers, permutations.
#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "data/permutation.h"
#include "kernels/philox.h"
#include "test/catch.h"
#include "test/operand.h"

namespace goat {
namespace {

std::vector<std::uint64_t> order_of(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch) {
  const Permutation permutation(n, seed, epoch);
  std::vector<std::uint64_t> order(n);
  for (std::uint64_t i = 0; i < n; ++i) order[i] = permutation(i);
  return order;
}

bool is_bijection(std::vector<std::uint64_t> order) {
  std::sort(order.begin(), order.end());
  for (std::uint64_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("philox: matches the known answers of Random123") {
  constexpr std::uint32_t ones = 0xffffffffu;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) ==
        PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox: every part of seed, stream, item and block selects other words") {
  const std::uint64_t high = std::uint64_t{1} << 40;
  const auto stream = RandomStream::copy_mixture;
  const std::set<PhiloxBlock> blocks = {
      philox(1, stream, 1, 1),
      philox(2, stream, 1, 1),
      philox(1 + high, stream, 1, 1),
      philox(1, stream, 2, 1),
      philox(1, stream, 1 + high, 1),
      philox(1, stream, 1, 2),
      philox(1, RandomStream::shuffle, 1, 1),
  };
  CHECK(blocks.size() == 7);
}

TEST_CASE("philox: uniform covers [0, 1) and normal pairs have mean 0, variance 1 and no correlation") {
  CHECK(uniform(0) == 0);
  CHECK(uniform(0xffffffffu) < 1);
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const int pairs = 200'000;
  double uniforms = 0, sum = 0, squares = 0, products = 0, fourth = 0;
  for (int i = 0; i < pairs; ++i) {
    const PhiloxBlock words = philox(seed, RandomStream::init, 0, static_cast<std::uint32_t>(i));
    const auto [a, b] = normal_pair(words[0], words[1]);
    uniforms += uniform(words[2]);
    sum += a + b;
    squares += a * a + b * b;
    products += a * b;
    fourth += a * a * a * a + b * b * b * b;
  }
  const double n = 2.0 * pairs;  // each margin is six standard deviations
  CHECK(uniforms / pairs == Approx(0.5).margin(6 * std::sqrt(1 / 12.0 / pairs)));
  CHECK(sum / n == Approx(0).margin(6 / std::sqrt(n)));
  CHECK(squares / n == Approx(1).margin(6 * std::sqrt(2 / n)));
  CHECK(products / pairs == Approx(0).margin(6 / std::sqrt(pairs)));
  CHECK(fourth / n == Approx(3).margin(6 * std::sqrt(96 / n)));
  // the extreme words stay finite
  for (const std::uint32_t word : {0u, 0xffffffffu}) {
    for (const double value : normal_pair(word, word)) CHECK(std::isfinite(value));
  }
}

TEST_CASE("permutation: is a bijection of [0, n) for n = 1 .. 300 and around powers of two") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  std::vector<std::uint64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {511, 512, 513, 32'767, 32'768, 32'769, 65'536, 65'537});
  for (const std::uint64_t n : sizes) {
    INFO("n " << n);
    CHECK(is_bijection(order_of(n, seed, n % 7)));
  }
}

TEST_CASE("permutation: stays below n for sizes that no table could hold") {
  const std::uint64_t n = (std::uint64_t{1} << 62) + 12'345;
  const Permutation permutation(n, test::fresh_seed(), 0);
  std::set<std::uint64_t> images;
  for (std::uint64_t i = 0; i < 1000; ++i) images.insert(permutation(n - 1 - i));
  CHECK(images.size() == 1000);
  CHECK(*images.rbegin() < n);
  CHECK(*images.rbegin() > n / 2);
}

TEST_CASE("permutation: differs by epoch and by seed, and is the same for the same of both") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const auto order = order_of(100, seed, 0);
  CHECK(order == order_of(100, seed, 0));
  CHECK(order != order_of(100, seed, 1));
  CHECK(order != order_of(100, seed, std::uint64_t{1} << 33));
  CHECK(order != order_of(100, seed + 1, 0));
  CHECK(order != order_of(100, seed ^ std::uint64_t{1} << 60, 0));
}

TEST_CASE("permutation: every order of three is as likely as another, and each index goes everywhere") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const int epochs = 6000;
  std::vector<int> orders(27, 0);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const auto order = order_of(3, seed, static_cast<std::uint64_t>(epoch));
    ++orders[9 * order[0] + 3 * order[1] + order[2]];
  }
  const double six_sigma = 6 * std::sqrt(epochs * (1 / 6.0) * (5 / 6.0));
  for (const int code : {5, 7, 11, 15, 19, 21})
    CHECK(orders[static_cast<std::size_t>(code)] == Approx(epochs / 6.0).margin(six_sigma));

  // chi-square of (index, image) over many epochs at n = 37, which is no power of two
  const int n = 37;
  const int draws = 3700;
  std::vector<int> counts(n * n, 0);
  for (int epoch = 0; epoch < draws; ++epoch) {
    const auto order = order_of(n, seed, static_cast<std::uint64_t>(epoch));
    for (int i = 0; i < n; ++i)
      ++counts[static_cast<std::size_t>(i * n) + order[static_cast<std::size_t>(i)]];
  }
  const double expected = static_cast<double>(draws) / n;
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
  const double freedom = (n - 1.0) * (n - 1.0);
  CHECK(chi_square == Approx(freedom).margin(6 * std::sqrt(2 * freedom)));
}

}  // namespace goat
