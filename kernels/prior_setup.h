// Constants of the attention prior's initialisation: frequencies, ALiBi slopes, and the inverse of softplus.
#pragma once

#include <cstdint>
#include <vector>

namespace goat {

// w_r = base^(-(r-1)/max(R-1, 1)), r = 1..R, R = modes: from 1 down to 1/base; R = 1 gives 1. Throws
// std::invalid_argument unless modes >= 0 and base > 0.
std::vector<double> fourier_frequencies(std::int64_t modes, double base);

// The slopes of ALiBi (Press et al., "Train Short, Test Long", 2022). If `heads` is a power of two:
// 2^(-8k/heads), k = 1..heads. Otherwise: the slopes of the next lower power of two P, followed by every
// second slope of 2P until there are enough. Throws std::invalid_argument unless heads >= 1.
std::vector<double> alibi_slopes(std::int64_t heads);

// rho with softplus(rho) = slope: rho = log(e^slope - 1). Throws std::invalid_argument unless slope is
// positive and finite.
double inverse_softplus(double slope);

}  // namespace goat
