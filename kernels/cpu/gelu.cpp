// GELU, tanh form, computed with the logistic function: 1/2 (1 + tanh u) = 1 / (1 + e^(-2u)). This form keeps
// its relative accuracy in the left tail.
#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
constexpr std::int64_t block_size = 8192;     // elements per thread and work item
constexpr float slope = 1.5957691216057308f;  // d(2u)/dx at 0: 2 sqrt(2/pi)
constexpr float cubic = 0.044715f;

struct Gate {
  float open;  // 1 / (1 + e^(-2u))
  float rate;  // d open / dx
  // The argument, limited to the range where the gate is neither 0 nor 1. Beyond it, powers of x would
  // overflow and give inf * 0.
  float x;
};

SIMD_INLINE Gate gate_at(float value) {
  const float x = value < -20.0f ? -20.0f : (value > 20.0f ? 20.0f : value);
  const float square = x * x;
  const float twice_u = slope * x * (1.0f + cubic * square);
  const float e = simd::exp(twice_u < 0 ? twice_u : -twice_u);  // at most 1
  const float scale = 1.0f / (1.0f + e);
  const float open = twice_u < 0 ? e * scale : scale;
  return {open, e * scale * scale * slope * (1.0f + 3.0f * cubic * square), x};
}

SIMD_CLONES void gelu(float* __restrict out, const float* __restrict x, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = x[i] * gate_at(x[i]).open;
}

// d(x open)/dx = open + x d open/dx. dx may be dout.
SIMD_CLONES void gelu_gradient(float* dx, const float* dout, const float* __restrict x, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const Gate gate = gate_at(x[i]);
    dx[i] = dout[i] * (gate.open + gate.x * gate.rate);
  }
}
}  // namespace

// A thread owns a block of elements. Moves 8 bytes per element.
void CpuDevice::launch(const GeluForward& op) {
  const std::int64_t count = op.x.elements();
  const float* x = op.x.as<float>();
  float* out = op.out.as<float>();
#pragma omp parallel for schedule(static) if (count > block_size)
  for (std::int64_t first = 0; first < count; first += block_size)
    gelu(out + first, x + first, std::min(block_size, count - first));
}

// A thread owns a block of elements. Moves 12 bytes per element.
void CpuDevice::launch(const GeluBackward& op) {
  const std::int64_t count = op.x.elements();
  const float *x = op.x.as<float>(), *dout = op.dout.as<float>();
  float* dx = op.dx.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < count; first += block_size)
    gelu_gradient(dx + first, dout + first, x + first, std::min(block_size, count - first));
}

}  // namespace goat
