// Arithmetic on the values of operands, element by element.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace goat::test {

inline std::vector<double> plus(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline std::vector<double> absolute(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

}  // namespace goat::test
