// Fourier features of a position, shared by the relative prior (prior.cu) and the sink features (sink.cu).
#pragma once

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

// The axis of an A-dimensional position that mode r acts on: the first modes - floor(modes/2) modes act on
// y, the others on x.
__device__ __forceinline__ int axis_of_mode(int r, int modes, int axes) {
  return axes == 2 && r >= modes - modes / 2 ? 1 : 0;
}

// (cos, sin) of frequency * position; (0, 0) for a negative position, which stands for no position. The angle
// is a double, because a float would lose 8 bits at position 32767.
__device__ __forceinline__ float2 fourier_pair(double frequency, int position) {
  if (position < 0) return make_float2(0, 0);
  const double angle = frequency * position;
  return make_float2(static_cast<float>(cos(angle)), static_cast<float>(sin(angle)));
}

}  // namespace goat::GOAT_TARGET
