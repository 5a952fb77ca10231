// Fill and Cast. These operations also accept bf16 on the CPU.
#include <algorithm>

#include "kernels/cpu/bf16.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
constexpr std::int64_t block_size = 8192;  // elements per thread and work item

template <class To>
SIMD_INLINE void fill(To* out, float value, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) store(out[i], value);
}
SIMD_CLONES void fill_block(float* out, float value, std::int64_t count) { fill(out, value, count); }
SIMD_CLONES void fill_block(Bf16* out, float value, std::int64_t count) { fill(out, value, count); }

template <class To, class From>
SIMD_INLINE void cast(To* out, const From* x, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) store(out[i], to_float(x[i]));
}
SIMD_CLONES void cast_block(float* out, const float* x, std::int64_t count) { cast(out, x, count); }
SIMD_CLONES void cast_block(float* out, const Bf16* x, std::int64_t count) { cast(out, x, count); }
SIMD_CLONES void cast_block(Bf16* out, const float* x, std::int64_t count) { cast(out, x, count); }
SIMD_CLONES void cast_block(Bf16* out, const Bf16* x, std::int64_t count) { cast(out, x, count); }
}  // namespace

// A thread owns a block of elements.
void CpuDevice::launch(const Fill& op) {
  const std::int64_t count = op.out.elements();
  with_elements(op.out, [&](auto* out) {
#pragma omp parallel for schedule(static)
    for (std::int64_t first = 0; first < count; first += block_size)
      fill_block(out + first, op.value, std::min(block_size, count - first));
  });
}

// A thread owns a block of elements. Moves 8 bytes per element from f32 to f32, 6 between f32 and bf16, and 4
// from bf16 to bf16.
void CpuDevice::launch(const Cast& op) {
  const std::int64_t count = op.out.elements();
  with_elements(op.out, [&](auto* out) {
    with_elements(op.x, [&](const auto* x) {
#pragma omp parallel for schedule(static)
      for (std::int64_t first = 0; first < count; first += block_size)
        cast_block(out + first, x + first, std::min(block_size, count - first));
    });
  });
}

}  // namespace goat
