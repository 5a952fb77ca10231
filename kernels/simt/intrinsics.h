// Intrinsics of a single thread: loads and stores with cache hints, atomics, mathematics, bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace goat::on_simt {

using bf16 = __nv_bfloat16;

// ---- loads and stores of 1 to 16 bytes. Like a GPU, they fail if the address is not a multiple of the size.

[[noreturn]] void misaligned_access(const void* place, std::size_t bytes, const void* code);
[[gnu::always_inline]] inline const void* this_place() {
  const void* code;
#if defined(__x86_64__)
  asm("lea 1(%%rip), %0" : "=r"(code));  // reports use the byte before it, as for a return address
#else
  code = __builtin_return_address(0);
#endif
  return code;
}

template <class T>
[[gnu::always_inline]] inline const T* aligned(const T* place) {
  static_assert(sizeof(T) <= 16 && std::has_single_bit(sizeof(T)),
                "one instruction moves 1, 2, 4, 8 or 16 bytes");
  if (reinterpret_cast<std::uintptr_t>(place) % sizeof(T) != 0) [[unlikely]]
    misaligned_access(place, sizeof(T), this_place());
  return place;
}

#define GOAT_SIMT_LOAD(name)                             \
  template <class T>                                     \
  [[gnu::always_inline]] inline T name(const T* place) { \
    return *aligned(place);                              \
  }
#define GOAT_SIMT_STORE(name)                                                        \
  template <class T>                                                                 \
  [[gnu::always_inline]] inline void name(T* place, std::type_identity_t<T> value) { \
    *const_cast<T*>(aligned(place)) = value;                                         \
  }
GOAT_SIMT_LOAD(__ldg)
GOAT_SIMT_LOAD(__ldca)
GOAT_SIMT_LOAD(__ldcg)
GOAT_SIMT_LOAD(__ldcs)
GOAT_SIMT_LOAD(__ldcv)
GOAT_SIMT_LOAD(__ldlu)
GOAT_SIMT_STORE(__stwb)
GOAT_SIMT_STORE(__stcg)
GOAT_SIMT_STORE(__stcs)
GOAT_SIMT_STORE(__stwt)
#undef GOAT_SIMT_LOAD
#undef GOAT_SIMT_STORE

// ---- atomics on global and shared memory

// Records the access in the race checker and checks its alignment.
void observe_atomic(const void* place, std::size_t bytes);

template <class T>
std::atomic_ref<T> atomic(T* place) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  observe_atomic(place, sizeof(T));
  return std::atomic_ref<T>(*place);
}
template <class T, class Change>
T atomic_update(T* place, Change change) {
  std::atomic_ref<T> value = atomic(place);
  T old = value.load(std::memory_order_relaxed);
  while (!value.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {
  }
  return old;
}
template <class T>
T atomicAdd(T* place, std::type_identity_t<T> value) {
  return atomic(place).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomicSub(T* place, std::type_identity_t<T> value) {
  return atomic(place).fetch_sub(value, std::memory_order_relaxed);
}
template <class T>
T atomicAnd(T* place, std::type_identity_t<T> value) {
  return atomic(place).fetch_and(value, std::memory_order_relaxed);
}
template <class T>
T atomicOr(T* place, std::type_identity_t<T> value) {
  return atomic(place).fetch_or(value, std::memory_order_relaxed);
}
template <class T>
T atomicXor(T* place, std::type_identity_t<T> value) {
  return atomic(place).fetch_xor(value, std::memory_order_relaxed);
}
template <class T>
T atomicExch(T* place, std::type_identity_t<T> value) {
  return atomic(place).exchange(value, std::memory_order_relaxed);
}
template <class T>
T atomicCAS(T* place, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  atomic(place).compare_exchange_strong(expected, value, std::memory_order_relaxed);
  return expected;
}
template <class T>
T atomicMin(T* place, std::type_identity_t<T> value) {
  return atomic_update(place, [value](T old) { return value < old ? value : old; });
}
template <class T>
T atomicMax(T* place, std::type_identity_t<T> value) {
  return atomic_update(place, [value](T old) { return old < value ? value : old; });
}
inline unsigned atomicInc(unsigned* place, unsigned limit) {
  return atomic_update(place, [limit](unsigned old) { return old >= limit ? 0 : old + 1; });
}

// ---- conversion to bf16, to nearest even. It replaces the functions of cuda_bf16.h, because these are not
// always inlined: then g++ -fsanitize=thread does not report the store in `*place = call()` of a class type.

[[gnu::always_inline]] inline bf16 __float2bfloat16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  return std::bit_cast<bf16>(
      static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFu : rounded));
}
[[gnu::always_inline]] inline bf16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }
[[gnu::always_inline]] inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return __nv_bfloat162(__float2bfloat16(low), __float2bfloat16(high));
}

// ---- mathematics. Here the fast functions are as accurate as the others.

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline void __sincosf(float x, float* sine, float* cosine) {
  *sine = std::sin(x);
  *cosine = std::cos(x);
}
inline void sincosf(float x, float* sine, float* cosine) { __sincosf(x, sine, cosine); }
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = static_cast<float>(std::sin(static_cast<double>(x) * 3.14159265358979323846));
  *cosine = static_cast<float>(std::cos(static_cast<double>(x) * 3.14159265358979323846));
}
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
// Never contracted to an FMA, as on the GPU.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) {
  float product = a * b;
  asm("" : "+m"(product));
  return product;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(std::ceil(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

// ---- bits

inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
// Selects four of the eight bytes of (high, low) by the nibbles of `selector`.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(high) << 32 | low) >> (shift & 31));
}

}  // namespace goat::on_simt
