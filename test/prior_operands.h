// Operands of the prior's operations, made from the oracle's types.
#pragma once

#include <cstdint>
#include <vector>

#include "test/operand.h"
#include "test/prior_oracle.h"

namespace goat::test {

inline Operand positions_operand(Device& device, const Positions& positions) {
  return Operand::of(device, positions.values, {positions.rows(), positions.axes}, "positions", DType::i32);
}

// The oracle's (cos, sin) [T, R, 2], which key_vector gives for any head with these frequencies.
inline std::vector<double> fourier_table(const std::vector<double>& frequency, const Positions& positions) {
  const HeadPrior head{frequency, frequency, frequency, 0, {}};
  std::vector<double> table;
  for (std::int64_t t = 0; t < positions.rows(); ++t) {
    const std::vector<double> row = key_vector(head, positions, t);
    table.insert(table.end(), row.begin(), row.end());
  }
  return table;
}

// One HeadPrior a head from alpha [H, R] and beta [H, R].
inline std::vector<HeadPrior> heads_of(const Operand& alpha, const Operand& beta,
                                       const std::vector<double>& frequency) {
  const std::vector<double> a = alpha.values(), b = beta.values();
  const auto modes = static_cast<std::ptrdiff_t>(frequency.size());
  std::vector<HeadPrior> heads;
  for (std::int64_t h = 0; h < alpha.tensor().shape[0]; ++h)
    heads.push_back({{a.begin() + h * modes, a.begin() + (h + 1) * modes},
                     {b.begin() + h * modes, b.begin() + (h + 1) * modes},
                     frequency,
                     0,
                     {}});
  return heads;
}

}  // namespace goat::test
