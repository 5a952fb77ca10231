// Constants that set up the attention prior: frequencies, ALiBi slopes, and the inverse of the softplus that
// may parametrise a slope.
#pragma once

#include <cstdint>
#include <vector>

namespace goat {

// w_r = base^(-(r-1)/max(R-1, 1)), r = 1..R = modes: from 1 down to 1/base; R = 1 gives 1. modes >= 0, base >
// 0, else std::invalid_argument.
std::vector<double> fourier_frequencies(std::int64_t modes, double base);

// The slopes of ALiBi (Press et al., "Train Short, Test Long", 2022): for a power of two 2^(-8k/heads), k
// = 1..heads; otherwise those of the next lower power of two P, then every second slope of 2P, until there
// are enough. heads >= 1, else std::invalid_argument.
std::vector<double> alibi_slopes(std::int64_t heads);

// rho with softplus(rho) = slope, that is log(e^slope - 1). slope > 0 and finite, else std::invalid_argument.
double inverse_softplus(double slope);

}  // namespace goat
