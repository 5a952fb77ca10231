// The layers of a model in float64, naive and forward only. Matrices are row-major.
#pragma once

#include <cstdint>
#include <vector>

namespace goat::test {

using Matrix = std::vector<double>;

// x W^T + b for each row of x [rows, inputs]; W is [outputs, inputs], b is [outputs] or empty.
Matrix linear(const Matrix& x, const Matrix& weight, const Matrix& bias, std::int64_t inputs);

// Both take rows of weight.size() columns. bias may be empty.
Matrix layernorm(const Matrix& x, const Matrix& weight, const Matrix& bias, double eps = 1e-5);
Matrix rmsnorm(const Matrix& x, const Matrix& weight, double eps = 1e-5);

double gelu(double x);  // tanh form
double silu(double x);

// Of the rotary embedding: the dimensions that are turned (0: all), the position of the first row, and what
// all positions are multiplied by.
struct Turn {
  std::int64_t dim = 0;
  std::int64_t first_position = 0;
  double stretch = 1;
};

// The rotary embedding, rotate-half form: in each head of x [T, H, d_h] the pair (x_r, x_{r + d/2}), r < d/2,
// of the row at position p is turned by the angle stretch * p * base^(-2r/d), d = turn.dim.
Matrix rotated(const Matrix& x, std::int64_t heads, std::int64_t head_dim, double base, Turn turn = {});

// Causal attention of one sequence of T rows: q is [T, H, d_c], k [T, H_k, d_c], v [T, H_k, d_h] and the
// result [T, H, d_h]. Head h reads head h / (H / H_k) of k and v. prior[h] is the matrix [T, T] that is added
// to the logits of head h.
Matrix causal_attention(const Matrix& q, const Matrix& k, const Matrix& v, const std::vector<Matrix>& prior,
                        std::int64_t rows, double scale, std::int64_t group = 1);

}  // namespace goat::test
