// Forgetting attention (Lin et al. 2025, "Forgetting Transformer"): each token decides how much of what came
// before it attention forgets.
#pragma once

#include "train/positions/positional_part.h"

namespace goat {

// z_ij += sum of log f_l over l = j+1 .. i,  f_l = sigmoid(<w_h, x_l> + b_h), for each query head h. The
// parameters are "forget.weight" [H, C] = w, decayed like other matrices, and "forget.bias" [H] = b, not
// decayed. w starts as N(0, 0.02^2) and b at 2, so that all gates start near sigmoid(2) = 0.88.
void declare_forget(const Config& config, const std::string& prefix, ParameterSet& parameters);
std::unique_ptr<PositionalPart> make_forget(const Config& config, const ParameterSet& parameters);

}  // namespace goat
