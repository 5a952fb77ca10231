// Rotary position embedding on the CPU. Rotates q and k in place: the pair (x_r, x_{r + d_h/2}) by the angle
// of mode r at the row's position.
#include <cstdint>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
// Rotates the heads of one row. x points to the first head, `turns` to the (cos, sin) of the row's position.
SIMD_CLONES void rotate_heads(float* x, std::int64_t heads, std::int64_t head_stride, std::int64_t half,
                              const float* turns, float direction) {
  for (std::int64_t h = 0; h < heads; ++h) {
    float *first = x + h * head_stride, *second = first + half;
#pragma omp simd
    for (std::int64_t r = 0; r < half; ++r) {
      const float cosine = turns[2 * r], sine = direction * turns[2 * r + 1], a = first[r], b = second[r];
      first[r] = a * cosine - b * sine;
      second[r] = b * cosine + a * sine;
    }
  }
}

void rotate(const Tensor& x, const float* table, float direction) {
  const std::int64_t batch = x.shape[0], rows = x.shape[1], half = x.shape[3] / 2;
  float* data = x.as<float>();
#pragma omp parallel for collapse(2) schedule(static) if (batch * rows > 1)
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t t = 0; t < rows; ++t)
      rotate_heads(data + b * x.stride[0] + t * x.stride[1], x.shape[2], x.stride[2], half,
                   table + t * half * 2, direction);
}
}  // namespace

// A thread owns tokens (b, t). Reads and writes q and k once: 8 (H + H_k) d_h bytes per token. The table
// stays in cache.
void CpuDevice::launch(const Rope& op) {
  const float* table = op.fourier.as<float>() + op.first_position * op.fourier.shape[1] * 2;
  const float direction = op.backward ? -1.0f : 1.0f;
  if (op.q) rotate(op.q, table, direction);
  if (op.k) rotate(op.k, table, direction);
}

}  // namespace goat
