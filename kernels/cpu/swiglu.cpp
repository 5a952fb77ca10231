// SwiGLU: out = silu(gate) up, with silu(x) = x s(x) and s(x) = 1 / (1 + e^-x).
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
// s(x) and s(-x) = 1 - s(x). The one that is below 1/2 is e / (1 + e) with e = e^-|x|, which keeps the
// relative accuracy in the tail.
struct Logistic {
  float of_x, of_minus_x;
};
SIMD_INLINE Logistic logistic(float x) {
  const float e = simd::exp(x < 0 ? x : -x);  // at most 1
  const float larger = 1.0f / (1.0f + e), smaller = e * larger;
  return x < 0 ? Logistic{smaller, larger} : Logistic{larger, smaller};
}

SIMD_CLONES void swiglu_row(float* __restrict out, const float* __restrict gate, const float* __restrict up,
                            std::int64_t width) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) out[c] = gate[c] * logistic(gate[c]).of_x * up[c];
}

// dgate = dout up s(gate) (1 + gate s(-gate)),  dup = dout silu(gate). dgate may be gate, and dup may be up.
SIMD_CLONES void swiglu_gradient_row(float* dgate, float* dup, const float* __restrict dout,
                                     const float* gate, const float* up, std::int64_t width) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) {
    const float g = gate[c];
    const Logistic s = logistic(g);
    const float to_gate = dout[c] * up[c] * s.of_x * (1.0f + g * s.of_minus_x);
    dup[c] = dout[c] * g * s.of_x;
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
