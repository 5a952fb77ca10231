// GELU, tanh form, and its derivative in float64.
#pragma once

#include <cmath>
#include <vector>

namespace goat::test::gelu_oracle {

using Values = std::vector<double>;

inline const double root = std::sqrt(2 / std::acos(-1.0));

inline double tanh_term(double x) { return std::tanh(root * (x + 0.044715 * x * x * x)); }
inline double sech_term(double x) {
  return x / 2 * (1 - tanh_term(x) * tanh_term(x)) * root * (1 + 3 * 0.044715 * x * x);
}

inline double gelu(double x) { return x / 2 * (1 + tanh_term(x)); }
inline double gelu_derivative(double x) { return (1 + tanh_term(x)) / 2 + sech_term(x); }

// The same sums with the absolute values of their terms: in the left tail 1 and tanh cancel.
inline double gelu_terms(double x) { return std::abs(x) / 2 * (1 + std::abs(tanh_term(x))); }
inline double gelu_derivative_terms(double x) {
  return (1 + std::abs(tanh_term(x))) / 2 + std::abs(sech_term(x));
}

// Element by element.
inline Values map(double (*function)(double), Values values) {
  for (double& value : values) value = function(value);
  return values;
}

inline Values product(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

}  // namespace goat::test::gelu_oracle
