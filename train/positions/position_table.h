// PositionTable: cos and sin of frequency * position for the positions of a pass.
#pragma once

#include <string>
#include <vector>

#include "train/memory/pass_plan.h"

namespace goat {

struct PositionTable {
  Tensor positions;  // i32 [T, 1]: 0, 1, .. T-1; T is T_max with a KV cache
  Tensor frequency;  // f64 [R]
  Tensor fourier;    // f32 [T, R, 2], (cos, sin); see FourierTable in kernels/operations.h

  // `name` starts the names of the tensors; `modes` is R.
  void plan(const std::string& name, std::int64_t modes, const PassPlan& plan);
  void fill(Device& device, const std::vector<double>& frequencies) const;  // after allocation
};

}  // namespace goat
