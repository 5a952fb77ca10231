// The rotation of q and k by their positions (RoPE, Su et al. 2021).
#pragma once

#include "train/positions/positional_part.h"

namespace goat {

// Turns the pair (x_r, x_{r + d_h/2}) of q and k at position p by the angle p * rope_base^(-2r/d_h),
// r = 0 .. d_h/2 - 1 (kernels/operations.h, Rope). There are no parameters.
std::unique_ptr<PositionalPart> make_rope(const Config& config);

}  // namespace goat
