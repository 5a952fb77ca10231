// The learnable attention prior (goat.md): the log-prior K_ij = a trigonometric polynomial of i - j, a slope
// and a key bias u(j).
//
// q and k carry the polynomial and the key bias in their last coordinates, the lanes; attention takes the
// slope as an operand.
#pragma once

#include "train/positions/positional_part.h"

namespace goat {

void declare_goat(const Config& config, const std::string& prefix, ParameterSet& parameters);
std::unique_ptr<PositionalPart> make_goat(const Config& config, const ParameterSet& parameters);

}  // namespace goat
