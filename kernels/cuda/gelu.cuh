// GELU, tanh form, by the logistic function: 1/2 (1 + tanh u) = 1 / (1 + e^(-2u)). This form keeps the
// relative accuracy in the left tail.
#pragma once

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

constexpr float gelu_slope = 1.5957691216057308f;  // d(2u)/dx at 0: 2 sqrt(2/pi)
constexpr float gelu_cubic = 0.044715f;

struct GeluGate {
  float open;  // 1 / (1 + e^(-2u))
  float rate;  // d open / dx
  // The argument, limited to [-20, 20]. Beyond, the gate is 0 or 1, and powers of x could give inf * 0.
  float x;
};

__device__ __forceinline__ GeluGate gelu_gate(float value) {
  const float x = value < -20.0f ? -20.0f : (value > 20.0f ? 20.0f : value);  // keeps NaN
  const float square = x * x;
  const float twice_u = gelu_slope * x * (1.0f + gelu_cubic * square);
  const float e = __expf(-fabsf(twice_u));  // at most 1
  const float scale = __fdividef(1.0f, 1.0f + e);
  return {twice_u < 0 ? e * scale : scale,
          e * scale * scale * gelu_slope * (1.0f + 3.0f * gelu_cubic * square), x};
}

__device__ __forceinline__ float gelu(float x) { return x * gelu_gate(x).open; }

// d(x open)/dx = open + x d open/dx
__device__ __forceinline__ float gelu_derivative(float x) {
  const GeluGate gate = gelu_gate(x);
  return gate.open + gate.x * gate.rate;
}

}  // namespace goat::GOAT_TARGET
