// The naive linear layer in float64, forward and backward.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace goat::test::linear_oracle {

using Values = std::vector<double>;

struct Oracle {
  Values value;
  Values terms;  // sums of the absolute values of the terms of `value`
};

inline std::size_t at(std::int64_t row, std::int64_t column, std::int64_t columns) {
  return static_cast<std::size_t>(row * columns + column);
}

// start + the product of left(i, k) and right(k, j), [rows, columns].
template <class Left, class Right>
Oracle add_product(const Values& start, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                   Left left, Right right) {
  Oracle sum{start, start};
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      double& value = sum.value[at(i, j, columns)];
      double& terms = sum.terms[at(i, j, columns)];
      terms = std::abs(value);
      for (std::int64_t k = 0; k < depth; ++k) {
        value += left(i, k) * right(k, j);
        terms += std::abs(left(i, k) * right(k, j));
      }
    }
  return sum;
}

// Of x [tokens, in], weight [out, in] and out [tokens, out].
struct Shape {
  std::int64_t tokens, in, out;
};

// bias may be empty.
inline Oracle forward(const Shape& s, const Values& x, const Values& weight, const Values& bias) {
  Values start(static_cast<std::size_t>(s.tokens * s.out), 0.0);
  for (std::size_t i = 0; i < start.size() && !bias.empty(); ++i) start[i] = bias[i % bias.size()];
  return add_product(
      start, s.tokens, s.out, s.in, [&](auto n, auto i) { return x[at(n, i, s.in)]; },
      [&](auto i, auto o) { return weight[at(o, i, s.in)]; });
}

inline Oracle backward_input(const Shape& s, const Values& dout, const Values& weight) {
  return add_product(
      Values(static_cast<std::size_t>(s.tokens * s.in), 0.0), s.tokens, s.in, s.out,
      [&](auto n, auto o) { return dout[at(n, o, s.out)]; },
      [&](auto o, auto i) { return weight[at(o, i, s.in)]; });
}

inline Oracle backward_weight(const Shape& s, const Values& start, const Values& dout, const Values& x) {
  return add_product(
      start, s.out, s.in, s.tokens, [&](auto o, auto n) { return dout[at(n, o, s.out)]; },
      [&](auto n, auto i) { return x[at(n, i, s.in)]; });
}

inline Oracle backward_bias(const Shape& s, const Values& start, const Values& dout) {
  return add_product(
      start, 1, s.out, s.tokens, [](auto, auto) { return 1.0; },
      [&](auto n, auto o) { return dout[at(n, o, s.out)]; });
}

}  // namespace goat::test::linear_oracle
