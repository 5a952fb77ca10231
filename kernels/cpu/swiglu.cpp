// SwiGLU: out = silu(gate) up, with silu(x) = x s(x) and s(x) = 1 / (1 + e^-x).
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
// s(x). For x < 0 it is e^x / (1 + e^x), which keeps the relative accuracy in the left tail.
SIMD_INLINE float logistic(float x) {
  const float e = simd::exp(x < 0 ? x : -x);  // at most 1
  const float scale = 1.0f / (1.0f + e);
  return x < 0 ? e * scale : scale;
}

SIMD_CLONES void swiglu_row(float* __restrict out, const float* __restrict gate, const float* __restrict up,
                            std::int64_t width) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) out[c] = gate[c] * logistic(gate[c]) * up[c];
}

// dgate = dout up s(gate) (1 + gate (1 - s(gate))),  dup = dout silu(gate). 1 - s(x) is computed as s(-x),
// which is accurate if s(x) is near 1. dgate may be gate, and dup may be up.
SIMD_CLONES void swiglu_gradient_row(float* dgate, float* dup, const float* __restrict dout,
                                     const float* gate, const float* up, std::int64_t width) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) {
    const float g = gate[c], s = logistic(g);
    const float to_gate = dout[c] * up[c] * s * (1.0f + g * logistic(-g));
    dup[c] = dout[c] * g * s;
    dgate[c] = to_gate;
  }
}
}  // namespace

// A thread owns rows. Moves 12 bytes per element.
void CpuDevice::launch(const SwigluForward& op) {
  const std::int64_t rows = op.out.shape[0], width = op.out.shape[1];
  const std::int64_t gate_stride = op.gate.stride[0], up_stride = op.up.stride[0];
  const float *gate = op.gate.as<float>(), *up = op.up.as<float>();
  float* out = op.out.as<float>();
#pragma omp parallel for schedule(static) if (rows > 1)
  for (std::int64_t n = 0; n < rows; ++n)
    swiglu_row(out + n * width, gate + n * gate_stride, up + n * up_stride, width);
}

// A thread owns rows. Moves 20 bytes per element.
void CpuDevice::launch(const SwigluBackward& op) {
  const std::int64_t rows = op.dout.shape[0], width = op.dout.shape[1];
  const std::int64_t dgate_stride = op.dgate.stride[0], dup_stride = op.dup.stride[0];
  const std::int64_t gate_stride = op.gate.stride[0], up_stride = op.up.stride[0];
  const float *dout = op.dout.as<float>(), *gate = op.gate.as<float>(), *up = op.up.as<float>();
  float *dgate = op.dgate.as<float>(), *dup = op.dup.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t n = 0; n < rows; ++n)
    swiglu_gradient_row(dgate + n * dgate_stride, dup + n * dup_stride, dout + n * width,
                        gate + n * gate_stride, up + n * up_stride, width);
}

}  // namespace goat
