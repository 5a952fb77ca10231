// SumParts and WeightsHash. WeightsHash also accepts bf16 on the CPU.
#include <algorithm>
#include <array>
#include <bit>

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
SIMD_CLONES void sum_2(float* total, const float* p, std::int64_t stride, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) total[i] = p[i] + p[stride + i];
}
SIMD_CLONES void sum_4(float* total, const float* p, std::int64_t stride, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i)
    total[i] = (p[i] + p[stride + i]) + (p[2 * stride + i] + p[3 * stride + i]);
}

// total = the sum of the parts, `width` elements of each. `total` is the first of several arrays of
// block_size elements, of which the others hold partial sums.
void sum_block(float* total, const float* parts, std::int64_t stride, std::int64_t count,
               std::int64_t width) {
  if (count == 1) {
    std::copy_n(parts, width, total);
  } else if (count == 2) {
    sum_2(total, parts, stride, width);
  } else if (count == 4) {
    sum_4(total, parts, stride, width);
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
SIMD_INLINE std::uint64_t bits_of(std::uint16_t bf16) { return bf16; }

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
SIMD_CLONES std::uint64_t hash_block(const std::uint16_t* x, std::uint64_t first_element,
                                     std::int64_t count) {
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
  const auto* parts = op.parts.as<float>();
  auto* out = op.out.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < width; first += block_size) {
    std::array<float, (open_sums + 1) * block_size> sums;
    const std::int64_t columns = std::min(block_size, width - first);
    sum_block(sums.data(), parts + first, op.parts.stride[0], count, columns);
    std::copy_n(sums.data(), columns, out + first);
  }
}

// A thread owns a block of elements. Memory traffic: x once.
void CpuDevice::launch(const WeightsHash& op) {
  const auto first = static_cast<std::uint64_t>(op.first_element);
  const std::int64_t count = op.x.elements();
  *op.hash += op.x.dtype == DType::bf16 ? hash_of(static_cast<const std::uint16_t*>(op.x.data), first, count)
                                        : hash_of(op.x.as<float>(), first, count);
}

}  // namespace goat
