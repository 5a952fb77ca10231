// The rotation of q and k by their positions (RoPE, Su et al. 2021).
#pragma once

#include "train/positions/positional_part.h"

namespace goat {

// Of the first d = rope_dim() content coordinates of a head, turns the pair (x_r, x_{r + d/2}) of q and k at
// position p by the angle p * rope_base^(-2r/d), r = 0 .. d/2 - 1 (kernels/operations.h, Rope). There are no
// parameters.
std::unique_ptr<PositionalPart> make_rope(const Config& config, const ParameterSet& parameters);

// The same with positions p (L_train - 1)/(T - 1) in a pass over T > L_train positions, so that none is
// beyond those of training (position interpolation, Chen et al. 2023). With a KV cache T is its capacity.
std::unique_ptr<PositionalPart> make_rope_pi(const Config& config, const ParameterSet& parameters);

}  // namespace goat
