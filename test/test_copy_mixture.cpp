#include <cmath>
#include <vector>

#include "data/copy_mixture.h"
#include "kernels/philox.h"
#include "test/catch.h"
#include "test/operand.h"

namespace goat {
namespace {

// x_0 .. x_T
std::vector<std::int32_t> sequence(CopyMixture& source, std::size_t length, std::uint64_t index) {
  std::vector<std::int32_t> inputs(length, -7), targets(length, -7);
  source.read(index, inputs, targets);
  for (std::size_t i = 0; i + 1 < length; ++i) REQUIRE(targets[i] == inputs[i + 1]);
  inputs.push_back(targets.back());
  return inputs;
}

// P(x_{i+1} = next | x_0 .. x_i), from the definition of the task.
double conditional(const CopyMixtureOptions& options, const std::vector<std::int32_t>& x, std::size_t i,
                   std::int32_t next) {
  double p = (1 - options.p_first - options.p_prev) / static_cast<double>(options.vocab);
  if (next == x[0]) p += options.p_first;
  if (next == x[i == 0 ? 0 : i - 1]) p += options.p_prev;
  return p;
}

// Expected loss of the optimal predictor, summed over the positions, by enumeration of every sequence that
// begins with x.
double enumerated_loss(const CopyMixtureOptions& options, std::vector<std::int32_t>& x, double probability) {
  if (std::ssize(x) == options.seq_len + 1) return 0;
  double loss = 0;
  for (std::int32_t next = 0; next < options.vocab; ++next) {
    const double p = conditional(options, x, x.size() - 1, next);
    if (p == 0) continue;
    loss -= probability * p * std::log(p);
    x.push_back(next);
    loss += enumerated_loss(options, x, probability * p);
    x.pop_back();
  }
  return loss;
}

}  // namespace

TEST_CASE("copy mixture: draws the documented Philox words") {
  using Tokens = std::vector<std::int32_t>;  // computed by an independent implementation in Python
  CopyMixture training(
      {.vocab = 64, .seq_len = 15, .p_first = 0.25, .p_prev = 0.25, .seed = 1, .validation = false});
  CHECK(sequence(training, 15, 0) == Tokens{5, 31, 11, 19, 5, 19, 17, 5, 17, 48, 9, 8, 5, 5, 5, 5});
  CopyMixture validation(
      {.vocab = 64, .seq_len = 15, .p_first = 0.25, .p_prev = 0.25, .seed = 1, .validation = true});
  CHECK(sequence(validation, 15, 0) == Tokens{11, 11, 16, 11, 22, 18, 29, 11, 29, 25, 11, 28, 11, 8, 11, 8});
  const std::uint64_t seed = std::uint64_t{7} << 32 | 5;
  CopyMixture wide(
      {.vocab = 1000, .seq_len = 15, .p_first = 0.3, .p_prev = 0.45, .seed = seed, .validation = false});
  CHECK(sequence(wide, 15, std::uint64_t{3} << 32 | 9) ==
        Tokens{846, 846, 846, 957, 846, 957, 846, 957, 793, 846, 846, 846, 846, 846, 846, 466});
}

TEST_CASE("copy mixture: a sequence depends on seed, split and index only") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  CopyMixtureOptions options{.seed = seed};
  CopyMixture source(options);
  CopyMixture again(options);
  options.validation = true;
  CopyMixture validation(options);
  options = {.seed = seed + 1};
  CopyMixture other_seed(options);
  const auto fifth = sequence(source, 64, 5);
  for (std::uint64_t index = 0; index < 5; ++index) CHECK(sequence(again, 64, index) != fifth);
  CHECK(sequence(again, 64, 5) == fifth);
  CHECK(sequence(validation, 64, 5) != fifth);
  CHECK(sequence(other_seed, 64, 5) != fifth);
  CHECK(source.sequences() == TokenSource::endless);
}

TEST_CASE("copy mixture: tokens have the mixture's frequencies") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const CopyMixtureOptions options{.vocab = 7, .seq_len = 33, .p_first = 0.3, .p_prev = 0.2, .seed = seed};
  CopyMixture source(options);
  const double noise = 0.5 / 7;
  // Counts of x_{i+1} = x_0 and x_{i+1} = x_{i-1} where the two differ, of both where they agree, and of each
  // id.
  double differ = 0, first = 0, prev = 0, agree = 0, both = 0, tokens = 0;
  std::vector<double> ids(7, 0);
  for (std::uint64_t index = 0; index < 4000; ++index) {
    const auto x = sequence(source, 33, index);
    for (std::size_t i = 0; i < 33; ++i) {
      const std::int32_t before = x[i == 0 ? 0 : i - 1];
      if (before == x[0]) {
        ++agree;
        both += x[i + 1] == x[0];
      } else {
        ++differ;
        first += x[i + 1] == x[0];
        prev += x[i + 1] == before;
      }
    }
    for (const std::int32_t id : x) {
      REQUIRE(id >= 0);
      REQUIRE(id < 7);
    }
    ++ids[static_cast<std::size_t>(x[0])];
    ++tokens;
  }
  const auto six_sigma = [](double p, double n) { return 6 * std::sqrt(p * (1 - p) / n); };
  CHECK(first / differ == Approx(0.3 + noise).margin(six_sigma(0.3 + noise, differ)));
  CHECK(prev / differ == Approx(0.2 + noise).margin(six_sigma(0.2 + noise, differ)));
  CHECK(both / agree == Approx(0.5 + noise).margin(six_sigma(0.5 + noise, agree)));
  for (const double count : ids) CHECK(count / tokens == Approx(1 / 7.0).margin(six_sigma(1 / 7.0, tokens)));
}

TEST_CASE("copy mixture: the Bayes-optimal loss is the exact entropy of every sequence enumerated") {
  struct Case {
    std::int64_t vocab, seq_len;
    double p_first, p_prev;
  };
  for (const Case& c :
       {Case{2, 1, 0.25, 0.25}, Case{2, 9, 0.3, 0.6}, Case{3, 7, 0.25, 0.25}, Case{4, 6, 0, 0.7},
        Case{4, 6, 0.7, 0}, Case{3, 7, 0.6, 0.4}, Case{5, 5, 0, 0}, Case{3, 6, 1, 0}}) {
    INFO("V " << c.vocab << " T " << c.seq_len << " p_first " << c.p_first << " p_prev " << c.p_prev);
    const CopyMixtureOptions options{
        .vocab = c.vocab, .seq_len = c.seq_len, .p_first = c.p_first, .p_prev = c.p_prev};
    double want = 0;
    for (std::int32_t start = 0; start < c.vocab; ++start) {
      std::vector<std::int32_t> x{start};
      want += enumerated_loss(options, x, 1.0 / static_cast<double>(c.vocab));
    }
    CHECK(CopyMixture(options).bayes_optimal_loss().value() ==
          Approx(want / static_cast<double>(c.seq_len)).epsilon(1e-12).margin(1e-14));
  }
}

TEST_CASE("copy mixture: generated sequences cost the Bayes-optimal loss, 2.932 nats at the preset") {
  const std::uint64_t seed = test::fresh_seed();
  INFO("seed " << seed);
  const CopyMixtureOptions options{.seed = seed};
  CopyMixture source(options);
  const int count = 5000;
  double sum = 0, squares = 0;
  for (std::uint64_t index = 0; index < count; ++index) {
    const auto x = sequence(source, 64, index);
    double loss = 0;
    for (std::size_t i = 0; i < 64; ++i) loss -= std::log(conditional(options, x, i, x[i + 1])) / 64;
    sum += loss;
    squares += loss * loss;
  }
  const double mean = sum / count;
  const double standard_error = std::sqrt((squares / count - mean * mean) / count);
  const double optimum = source.bayes_optimal_loss().value();
  CHECK(mean == Approx(optimum).margin(6 * standard_error));
  CHECK(optimum ==
        Approx(2.9315).margin(0.0005));  // 2.940 in the long run; the first two positions are easier
}

TEST_CASE("copy mixture: impossible options and spans of the wrong size are refused") {
  CHECK_THROWS_AS(CopyMixture({.vocab = 1}), std::invalid_argument);
  CHECK_THROWS_AS(CopyMixture({.seq_len = 0}), std::invalid_argument);
  CHECK_THROWS_AS(CopyMixture({.p_first = -0.1}), std::invalid_argument);
  CHECK_THROWS_AS(CopyMixture({.p_first = 0.6, .p_prev = 0.5}), std::invalid_argument);
  CHECK_THROWS_AS(CopyMixture({.p_first = std::nan("")}), std::invalid_argument);
  CopyMixture source(CopyMixtureOptions{});
  std::vector<std::int32_t> short_span(63), whole(64);
  CHECK_THROWS_AS(source.read(0, short_span, whole), std::invalid_argument);
  CHECK_THROWS_AS(source.read(0, whole, short_span), std::invalid_argument);
}

}  // namespace goat
