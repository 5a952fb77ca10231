// How the CPU kernels use vector instructions without -march flags. A hot function marked SIMD_CLONES is
// compiled for AVX-512, for AVX2+FMA and for the baseline, and the dynamic linker picks one version. Put the
// OpenMP region in an unmarked function and call a marked function inside it, because GCC does not clone the
// outlined body of a region. Functions that a marked function calls must be SIMD_INLINE, so that they are
// compiled with it.
// GCC vectorises square roots only with -fno-math-errno. For the baseline it vectorises selections only with
// -fno-trapping-math. Neither flag changes a result.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define AVX512_IS_CHOSEN __builtin_cpu_supports("x86-64-v4")
#else
#define SIMD_CLONES
#define AVX512_IS_CHOSEN false
#endif
#define SIMD_INLINE inline __attribute__((always_inline))

namespace goat::simd {

// Whether the clones for AVX-512 run, which have 32 vector registers of 16 floats. The others have 16 smaller
// ones.
inline const bool has_avx512 = AVX512_IS_CHOSEN;

// e^x within 1.1 ulp if it is a normal float; 0 if it is smaller (x < -87.33654), +inf if it is larger, NaN
// for NaN. It has no branches and no library calls, so that loops over it vectorise.
SIMD_INLINE float exp(float x) {
  const float clamped = x < -87.33654f ? -87.33654f : (x > 89.0f ? 89.0f : x);
  // n = round(x / log 2). Adding 1.5 * 2^23 leaves the integer in the low bits of the sum.
  constexpr float round_to_integer = 0x1.8p23f;
  const float shifted = clamped * 1.44269504088896341f + round_to_integer;
  const std::int32_t exponent =
      __builtin_bit_cast(std::int32_t, shifted) - __builtin_bit_cast(std::int32_t, round_to_integer);
  const float n = shifted - round_to_integer;
  const float r = (clamped - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n as two factors, so that n = 128 (results just below FLT_MAX) does not overflow too early.
  const std::int32_t half = exponent >> 1;
  const std::int32_t rest = exponent - half;
  const float scaled =
      p * __builtin_bit_cast(float, (half + 127) << 23) * __builtin_bit_cast(float, (rest + 127) << 23);
  return x < -87.33654f ? 0.0f : scaled;
}

// tanh(x) with an absolute error below 1e-7 (near 0 the relative error is larger). NaN for NaN.
SIMD_INLINE float tanh(float x) {
  const float e = simd::exp(-2.0f * (x < 0 ? -x : x));
  const float t = (1.0f - e) / (1.0f + e);
  return x < 0 ? -t : t;
}

}  // namespace goat::simd
