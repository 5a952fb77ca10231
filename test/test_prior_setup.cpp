#include <cmath>
#include <stdexcept>
#include <vector>

#include "kernels/prior_setup.h"
#include "test/catch.h"

using goat::alibi_slopes;
using goat::fourier_frequencies;
using goat::inverse_softplus;

TEST_CASE("prior setup: frequencies fall geometrically from 1 to 1/base", "[prior]") {
  CHECK(fourier_frequencies(0, 10000).empty());
  CHECK(fourier_frequencies(1, 10000) == std::vector<double>{1});
  for (const double base : {1000.0, 10000.0, 100000.0})
    for (const int modes : {2, 3, 4, 8}) {
      const std::vector<double> frequencies = fourier_frequencies(modes, base);
      INFO("base " << base << ", R = " << modes);
      REQUIRE(frequencies.size() == static_cast<std::size_t>(modes));
      for (int r = 1; r <= modes; ++r)
        CHECK(frequencies[r - 1] == Approx(std::pow(base, -(r - 1.0) / (modes - 1.0))).epsilon(1e-14));
      CHECK(frequencies.front() == 1);
      CHECK(frequencies.back() == Approx(1 / base).epsilon(1e-14));
    }
  CHECK_THROWS_AS(fourier_frequencies(-1, 10000), std::invalid_argument);
  CHECK_THROWS_AS(fourier_frequencies(2, 0), std::invalid_argument);
  CHECK_THROWS_AS(fourier_frequencies(2, std::nan("")), std::invalid_argument);
}

TEST_CASE("prior setup: ALiBi slopes are the published ones for a power of two and otherwise", "[prior]") {
  const auto check = [](const std::vector<double>& exponents) {
    std::vector<double> want;
    for (const double exponent : exponents) want.push_back(std::pow(2.0, -exponent));
    const std::vector<double> got = alibi_slopes(static_cast<std::int64_t>(exponents.size()));
    REQUIRE(got.size() == want.size());
    for (std::size_t h = 0; h < want.size(); ++h) CHECK(got[h] == Approx(want[h]).epsilon(1e-14));
  };
  check({8});
  check({4, 8});
  check({4, 8, 2});
  check({2, 4, 6, 8, 1, 3});
  check({1, 2, 3, 4, 5, 6, 7, 8});
  check({1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
  CHECK(alibi_slopes(12)[8] == Approx(0.70710678118654752).epsilon(1e-14));
  CHECK_THROWS_AS(alibi_slopes(0), std::invalid_argument);
}

TEST_CASE("prior setup: softplus undoes inverse_softplus for slopes from 1e-12 to 1e4", "[prior]") {
  for (const double slope : {1e-12, 1.0 / 256, 0.5, 0.70710678118654752, 1.0, 20.0}) {
    const double softplus = std::log1p(std::exp(inverse_softplus(slope)));
    CHECK(softplus == Approx(slope).epsilon(1e-12));
  }
  CHECK(inverse_softplus(0.5) == Approx(std::log(std::expm1(0.5))).epsilon(1e-14));
  CHECK(inverse_softplus(1e4) == 1e4);
  for (const double slope : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)})
    CHECK_THROWS_AS(inverse_softplus(slope), std::invalid_argument);
}
