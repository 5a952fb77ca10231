// Arithmetic on the values of operands, element by element.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
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

// Of values [B, H, T], each head's sum over the batch and the first `count` of T (all if negative): [H].
inline std::vector<double> sum_per_head(const std::vector<double>& values, std::int64_t batch,
                                        std::int64_t heads, std::int64_t count = -1) {
  const std::int64_t length = static_cast<std::int64_t>(values.size()) / (batch * heads);
  std::vector<double> sums(static_cast<std::size_t>(heads));
  for (std::int64_t n = 0; n < batch * heads; ++n) {
    const double* row = values.data() + n * length;
    sums[static_cast<std::size_t>(n % heads)] +=
        std::accumulate(row, row + (count < 0 ? length : count), 0.0);
  }
  return sums;
}

}  // namespace goat::test
