// Float64 oracle of the attention prior, naive: the matrix K_ij, the positional lanes, the sink features and
// MLP, and numerical derivatives.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "test/values.h"

namespace goat::test {

// A position of each row t: [T, A], A = 1 for sequences, 2 (y, x) for grids.
struct Positions {
  std::vector<double> values;
  std::int64_t axes = 1;

  std::int64_t rows() const { return static_cast<std::int64_t>(values.size()) / axes; }
  // The coordinate that mode r of R acts on: the first R - floor(R/2) modes on y, the rest on x.
  double coordinate(std::int64_t t, std::int64_t r, std::int64_t modes) const;

  static Positions sequence(std::int64_t first, std::int64_t rows);
  // Row 0 is a class token, the rest a grid `width` wide, row-major.
  static Positions grid_with_class_token(std::int64_t rows, std::int64_t width);
};

// (cos, sin) of frequency * position; zero at a negative position.
std::array<double, 2> fourier_pair(double frequency, double position);

// The parameters of one head's prior.
struct HeadPrior {
  std::vector<double> alpha, beta, frequency;  // [R]
  double slope = 0;                            // lambda
  std::vector<double> key_bias;                // u~(j) [T]; empty: 0

  std::int64_t modes() const { return static_cast<std::int64_t>(alpha.size()); }
  double amplitude() const;  // sum_r sqrt(alpha_r^2 + beta_r^2), the largest |K_rel|
};

// K_rel,ij = sum_r alpha_r cos(w_r (i-j)) + beta_r sin(w_r (i-j)), written with differences of positions: it
// knows nothing of the factorisation.
double relative_prior(const HeadPrior& head, const Positions& positions, std::int64_t i, std::int64_t j);

// K [T, T], K_ij = K_rel,ij + u~(j) + slope (j - i). (Softmax cannot tell slope (j - i) from slope j.)
std::vector<double> prior_matrix(const HeadPrior& head, const Positions& positions);

// a_t [2R] and c_t [2R] of the factorisation <a_i, c_j> = K_rel,ij.
std::vector<double> query_vector(const HeadPrior& head, const Positions& positions, std::int64_t t);
std::vector<double> key_vector(const HeadPrior& head, const Positions& positions, std::int64_t t);

// phi [T, 2M+2].
std::vector<double> sink_features(const std::vector<double>& frequency, const Positions& positions,
                                  double train_length);

// The sink MLP u~(j) = w2 silu(w1 phi(j) + b1) + bump [j == 0].
struct SinkMlp {
  std::vector<double> w1, b1, w2, bump;  // [n, F], [n], [H, n], [H]

  std::vector<double> hidden(const std::vector<double>& features) const;    // w1 phi + b1 [T, n]
  std::vector<double> key_bias(const std::vector<double>& features) const;  // [H, T]

  // Without the signs: with features >= 0 it computes the sums of the absolute values of the terms.
  SinkMlp absolute() const;
};

// Central differences: d loss() / d parameters[i] for all i; parameters are what loss() reads, and are left
// as they were.
std::vector<double> numerical_gradient(std::vector<double>& parameters, double step,
                                       const std::function<double()>& loss);

}  // namespace goat::test
