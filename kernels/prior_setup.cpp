#include "kernels/prior_setup.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>

namespace goat {

std::vector<double> fourier_frequencies(std::int64_t modes, double base) {
  if (modes < 0)
    throw std::invalid_argument("fourier_frequencies: modes = " + std::to_string(modes) +
                                ", needs at least 0");
  if (!(base > 0) || !std::isfinite(base))
    throw std::invalid_argument("fourier_frequencies: base = " + std::to_string(base) +
                                ", needs a positive number");
  const auto last = static_cast<double>(std::max<std::int64_t>(modes - 1, 1));
  std::vector<double> frequencies;
  for (std::int64_t r = 0; r < modes; ++r)
    frequencies.push_back(std::pow(base, -static_cast<double>(r) / last));
  return frequencies;
}

std::vector<double> alibi_slopes(std::int64_t heads) {
  if (heads < 1)
    throw std::invalid_argument("alibi_slopes: heads = " + std::to_string(heads) + ", needs at least 1");
  const auto count = static_cast<std::size_t>(heads);
  const std::size_t power = std::bit_floor(count);
  const auto slope = [](std::size_t k, std::size_t of) {
    return std::exp2(-8 * static_cast<double>(k) / static_cast<double>(of));
  };
  std::vector<double> slopes;
  slopes.reserve(count);
  for (std::size_t k = 1; k <= power; ++k) slopes.push_back(slope(k, power));
  for (std::size_t k = 1; slopes.size() < count; k += 2) slopes.push_back(slope(k, 2 * power));
  return slopes;
}

double inverse_softplus(double slope) {
  if (!(slope > 0) || !std::isfinite(slope))
    throw std::invalid_argument("inverse_softplus: slope = " + std::to_string(slope) +
                                ", but softplus only reaches positive finite numbers");
  return slope + std::log(-std::expm1(-slope));  // log(e^slope - 1) without overflow
}

}  // namespace goat
