// Position embeddings: a vector for each position, added to the embedded token.
#pragma once

#include "train/positions/positional_part.h"

namespace goat {

// x_p += s(p) / sqrt(C) with the sinusoids of Vaswani et al. 2017,
//   s(p)_2i = sin(p w_i),  s(p)_2i+1 = cos(p w_i),  w_i = 10000^(-2i/C).
// They add s(p) to sqrt(C) times the token's vector, which is the same up to the factor sqrt(C) of the whole
// stream, and the norms take that out. There are no parameters.
std::unique_ptr<PositionalPart> make_sinusoidal(const Config& config, const ParameterSet& parameters);

// x_p += row p of the parameter "position_embedding.weight", f32 [L_train, C], without weight decay. Planning
// a pass over more than L_train positions throws ConfigError.
void declare_learned_positions(const Config& config, ParameterSet& parameters);
std::unique_ptr<PositionalPart> make_learned_positions(const Config& config, const ParameterSet& parameters);

}  // namespace goat
