#include "test/layer_oracle.h"

#include <cmath>
#include <numbers>

namespace goat::test {

namespace {
double mean_square(const double* row, std::size_t width) {
  double sum = 0;
  for (std::size_t c = 0; c < width; ++c) sum += row[c] * row[c];
  return sum / static_cast<double>(width);
}
}  // namespace

Matrix linear(const Matrix& x, const Matrix& weight, const Matrix& bias, std::int64_t inputs) {
  const auto in = static_cast<std::size_t>(inputs);
  const std::size_t rows = x.size() / in, outputs = weight.size() / in;
  Matrix y(rows * outputs);
  for (std::size_t n = 0; n < rows; ++n)
    for (std::size_t o = 0; o < outputs; ++o) {
      double sum = bias.empty() ? 0 : bias[o];
      for (std::size_t i = 0; i < in; ++i) sum += x[n * in + i] * weight[o * in + i];
      y[n * outputs + o] = sum;
    }
  return y;
}

Matrix layernorm(const Matrix& x, const Matrix& weight, const Matrix& bias, double eps) {
  const std::size_t width = weight.size();
  Matrix y = x;
  for (std::size_t row = 0; row < x.size(); row += width) {
    double mean = 0;
    for (std::size_t c = 0; c < width; ++c) mean += x[row + c] / static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c) y[row + c] -= mean;
    const double deviation = std::sqrt(mean_square(&y[row], width) + eps);
    for (std::size_t c = 0; c < width; ++c)
      y[row + c] = y[row + c] / deviation * weight[c] + (bias.empty() ? 0 : bias[c]);
  }
  return y;
}

Matrix rmsnorm(const Matrix& x, const Matrix& weight, double eps) {
  const std::size_t width = weight.size();
  Matrix y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    const double rstd = 1 / std::sqrt(mean_square(&x[row], width) + eps);
    for (std::size_t c = 0; c < width; ++c) y[row + c] = x[row + c] * rstd * weight[c];
  }
  return y;
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

Matrix rotated(const Matrix& x, std::int64_t heads, std::int64_t head_dim, double base, Turn turn) {
  Matrix y = x;
  const std::int64_t dim = turn.dim ? turn.dim : head_dim, half = dim / 2;
  const auto size = static_cast<std::int64_t>(x.size());
  for (std::int64_t first = 0; first < size; first += head_dim)  // of a head's coordinates
    for (std::int64_t r = 0; r < half; ++r) {
      const double frequency = std::pow(base, -2.0 * static_cast<double>(r) / static_cast<double>(dim));
      const std::int64_t position = turn.first_position + first / (heads * head_dim);
      const double angle = turn.stretch * static_cast<double>(position) * frequency;
      const auto a = static_cast<std::size_t>(first + r), b = static_cast<std::size_t>(first + r + half);
      y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
    }
  return y;
}

Matrix causal_attention(const Matrix& q, const Matrix& k, const Matrix& v, const std::vector<Matrix>& prior,
                        std::int64_t rows, double scale, std::int64_t group) {
  const std::size_t heads = prior.size(), key_heads = heads / static_cast<std::size_t>(group),
                    length = static_cast<std::size_t>(rows), content = q.size() / (length * heads),
                    head_dim = v.size() / (length * key_heads);
  Matrix out(length * heads * head_dim);
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t key_head = h / static_cast<std::size_t>(group);
      Matrix p(i + 1);
      double total = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        double z = prior[h][i * length + j];
        for (std::size_t c = 0; c < content; ++c)
          z += scale * q[(i * heads + h) * content + c] * k[(j * key_heads + key_head) * content + c];
        total += p[j] = std::exp(z);
      }
      for (std::size_t j = 0; j <= i; ++j)
        for (std::size_t d = 0; d < head_dim; ++d)
          out[(i * heads + h) * head_dim + d] += p[j] / total * v[(j * key_heads + key_head) * head_dim + d];
    }
  return out;
}

}  // namespace goat::test
