// A slope for each head: attention fades with the distance (ALiBi, Press et al. 2022).
#pragma once

#include "train/positions/positional_part.h"

namespace goat {

// z_ij -= m_h (i - j) with the fixed slopes m = alibi_slopes(H) (kernels/prior_setup.h). There are no
// parameters.
std::unique_ptr<PositionalPart> make_alibi(const Config& config, const ParameterSet& parameters);

// The same with trained slopes m_h = softplus(rho_h), which start as ALiBi's. rho is the parameter
// "prior.slope", f32 [H].
void declare_learned_alibi(const Config& config, const std::string& prefix, ParameterSet& parameters);
std::unique_ptr<PositionalPart> make_learned_alibi(const Config& config, const ParameterSet& parameters);

}  // namespace goat
