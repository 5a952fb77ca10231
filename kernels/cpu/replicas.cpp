// SumParts and WeightsHash. These operations also accept bf16 on the CPU.
#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cpu/bf16.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
constexpr std::int64_t block_size = 1024;  // elements whose partial sums stay in the cache
constexpr int open_sums = 10;              // partial sums that most_parts parts need at a time

SIMD_CLONES void add(float* total, const float* other, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) total[i] += other[i];
}

// The sum of one element of `parts` parts, a power of two.
template <int parts, class T>
SIMD_INLINE float sum_of(const T* p, std::int64_t stride) {
  if constexpr (parts == 1)
    return to_float(*p);
  else
    return sum_of<parts / 2>(p, stride) + sum_of<parts / 2>(p + parts / 2 * stride, stride);
}
template <int parts, class T>
SIMD_INLINE void sum(float* total, const T* p, std::int64_t stride, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) total[i] = sum_of<parts>(p + i, stride);
}
template <class T>
SIMD_INLINE void sum_few(float* total, const T* p, std::int64_t stride, std::int64_t count,
                         std::int64_t width) {
  if (count == 1)
    sum<1>(total, p, stride, width);
  else if (count == 2)
    sum<2>(total, p, stride, width);
  else
    sum<4>(total, p, stride, width);
}
SIMD_CLONES void sum_1_2_or_4(float* total, const float* p, std::int64_t stride, std::int64_t count,
                              std::int64_t width) {
  sum_few(total, p, stride, count, width);
}
SIMD_CLONES void sum_1_2_or_4(float* total, const Bf16* p, std::int64_t stride, std::int64_t count,
                              std::int64_t width) {
  sum_few(total, p, stride, count, width);
}

// total = the sum of the parts, `width` elements of each. `total` is the first of several arrays of
// block_size elements, of which the others hold partial sums.
template <class T>
void sum_block(float* total, const T* parts, std::int64_t stride, std::int64_t count, std::int64_t width) {
  if (count == 1 || count == 2 || count == 4) {
    sum_1_2_or_4(total, parts, stride, count, width);
  } else {
    const auto first = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count - 1)));
    sum_block(total, parts, stride, first, width);
    sum_block(total + block_size, parts + first * stride, stride, count - first, width);
    add(total, total + block_size, width);
  }
}

SIMD_INLINE std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

SIMD_INLINE std::uint64_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
SIMD_INLINE std::uint64_t bits_of(Bf16 value) { return value.bits; }

template <class T>
SIMD_INLINE std::uint64_t hash(const T* x, std::uint64_t first_element, std::int64_t count) {
  std::uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i)
    sum += mix(bits_of(x[i]) + (first_element + static_cast<std::uint64_t>(i)) * 0x9E3779B97F4A7C15u);
  return sum;
}
SIMD_CLONES std::uint64_t hash_block(const float* x, std::uint64_t first_element, std::int64_t count) {
  return hash(x, first_element, count);
}
SIMD_CLONES std::uint64_t hash_block(const Bf16* x, std::uint64_t first_element, std::int64_t count) {
  return hash(x, first_element, count);
}

template <class T>
std::uint64_t hash_of(const T* x, std::uint64_t first_element, std::int64_t count) {
  constexpr std::int64_t step = 16 * block_size;
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (std::int64_t at = 0; at < count; at += step)
    sum += hash_block(x + at, first_element + static_cast<std::uint64_t>(at), std::min(step, count - at));
  return sum;
}
}  // namespace

// A thread owns a block of elements. The sum is stored when all parts of the block have been read, because
// `out` may be one of them. Memory traffic: the parts and the sum once.
void CpuDevice::launch(const SumParts& op) {
  const std::int64_t count = op.parts.shape[0], width = op.parts.shape[1];
  auto* out = op.out.as<float>();
  with_elements(op.parts, [&](const auto* parts) {
#pragma omp parallel for schedule(static)
    for (std::int64_t first = 0; first < width; first += block_size) {
      std::array<float, (open_sums + 1) * block_size> sums;
      const std::int64_t columns = std::min(block_size, width - first);
      sum_block(sums.data(), parts + first, op.parts.stride[0], count, columns);
      std::copy_n(sums.data(), columns, out + first);
    }
  });
}

// A thread owns a block of elements. Memory traffic: x once.
void CpuDevice::launch(const WeightsHash& op) {
  const auto first = static_cast<std::uint64_t>(op.first_element);
  const std::int64_t count = op.x.elements();
  with_elements(op.x, [&](const auto* x) { *op.hash += hash_of(x, first, count); });
}

}  // namespace goat
