// SumParts and WeightsHash.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/reduce.cuh"

namespace goat::GOAT_TARGET {

namespace {

// ------------------------------------------------------------------------------------------------ sum parts
template <int n>
__device__ __forceinline__ Pack<float, n> plus(Pack<float, n> a, const Pack<float, n>& b) {
#pragma unroll
  for (int i = 0; i < n; ++i) a.element[i] += b.element[i];
  return a;
}

template <int n, class T>
__device__ __forceinline__ Pack<float, n> widened(const Pack<T, n>& values) {
  Pack<float, n> wide;
#pragma unroll
  for (int i = 0; i < n; ++i) wide.element[i] = values[i];
  return wide;
}

// The sum of `parts` parts, a power of two. All are read before the first addition waits for one.
template <int parts, int n, class T>
__device__ __forceinline__ Pack<float, n> sum_of(const T* first, std::int64_t stride) {
  if constexpr (parts == 1)
    return widened(Pack<T, n>::load(first));
  else
    return plus(sum_of<parts / 2, n>(first, stride),
                sum_of<parts / 2, n>(first + parts / 2 * stride, stride));
}

constexpr int group = 8;  // parts that are added at a time

// open[l] is the sum of 2^l groups that waits for the next 2^l, where bit l of the number of groups so far is
// 1. `levels` bits hold that number.
template <class T, int levels>
struct PartsAdder {
  static constexpr int step = Vector<T>::size;
  float* out;
  const T* parts;
  std::int64_t stride;
  int count;

  template <int n>
  __device__ __forceinline__ void apply(std::int64_t at) const {
    Pack<float, n> open[levels] = {};
    const int groups = count / group;
    for (int g = 0; g < groups; ++g) {
      Pack<float, n> sum = sum_of<group, n>(parts + at + g * group * stride, stride);
      bool carried = true;
#pragma unroll
      for (int level = 0; level < levels; ++level) {
        const bool is_open = (g >> level) % 2 != 0;
        if (carried && !is_open) open[level] = sum;
        if (carried && is_open) sum = plus(open[level], sum);
        carried = carried && is_open;
      }
    }
    // What is open is added from the last, which is the smallest, to the first.
    Pack<float, n> total{};
    bool started = false;
    const auto add_before = [&](const Pack<float, n>& sum) {
      total = started ? plus(sum, total) : sum;
      started = true;
    };
    const T* end = parts + at + count * stride;
    if (count & 1) add_before(sum_of<1, n>(end -= stride, stride));
    if (count & 2) add_before(sum_of<2, n>(end -= 2 * stride, stride));
    if (count & 4) add_before(sum_of<4, n>(end -= 4 * stride, stride));
#pragma unroll
    for (int level = 0; level < levels; ++level)
      if ((groups >> level) % 2 != 0) add_before(open[level]);
    total.store(out + at);
  }
};

// --------------------------------------------------------------------------------------------- weights hash
constexpr int hash_threads = 256;
using HashSum = unsigned long long;  // as atomicAdd takes it

template <class T>
__device__ __forceinline__ HashSum hash_of(T value, std::uint64_t index) {
  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t> bits;
  memcpy(&bits, &value, sizeof bits);
  std::uint64_t z = bits + index * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Takes `packs` packs of n elements.
template <class T, int n>
__device__ __forceinline__ HashSum hash_packs(const T* x, std::int64_t packs, std::uint64_t first_element) {
  const std::int64_t stride = std::int64_t{gridDim.x} * hash_threads;
  HashSum sum = 0;
  for (std::int64_t pack = std::int64_t{blockIdx.x} * hash_threads + threadIdx.x; pack < packs;
       pack += stride) {
    const auto values = Pack<T, n>::load(x + pack * n);
#pragma unroll
    for (int i = 0; i < n; ++i)
      sum += hash_of(values.element[i], first_element + static_cast<std::uint64_t>(pack * n + i));
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(hash_threads)
    weights_hash_kernel(HashSum* hash, const T* x, std::int64_t packs, std::int64_t count,
                        std::uint64_t first_element) {
  constexpr int n = Vector<T>::size;
  HashSum sum = hash_packs<T, n>(x, packs, first_element);
  sum += hash_packs<T, 1>(x + packs * n, count - packs * n,
                          first_element + static_cast<std::uint64_t>(packs * n));
  sum = block_sum<hash_threads>(sum);
  if (threadIdx.x == 0) atomicAdd(hash, sum);
}

}  // namespace

// A thread takes 16 bytes of each part. It stores their sum when it has read them, because `out` may be one
// of the parts. Memory traffic: the parts and the sum once.
void CudaDevice::launch(const SumParts& op) {
  const auto enqueue_adder = [&]<class T, int levels>(PartsAdder<T, levels> adder) {
    adder.out = data_of<float>(op.out);
    adder.parts = data_of<T>(op.parts);
    adder.stride = op.parts.stride[0];
    adder.count = static_cast<int>(op.parts.shape[0]);
    const bool aligned =
        aligned_to_16(adder.out, adder.parts) && (adder.count == 1 || adder.stride % adder.step == 0);
    enqueue_elementwise(stream_, adder, op.parts.shape[1], aligned);
  };
  static_assert(SumParts::most_parts / group < 1 << 8);
  with_element_type(op.parts.dtype, [&]<class T>(T) {
    if (op.parts.shape[0] < 2 * group)
      enqueue_adder(PartsAdder<T, 1>{});
    else
      enqueue_adder(PartsAdder<T, 8>{});
  });
}

// A thread takes 16 bytes at a time; a block adds its sum to the hash. Memory traffic: x once.
void CudaDevice::launch(const WeightsHash& op) {
  const std::int64_t count = op.x.elements();
  if (count == 0) return;
  with_element_type(op.x.dtype, [&]<class T>(T) {
    const T* x = data_of<T>(op.x);
    const std::int64_t packs = aligned_to_16(x) ? count / Vector<T>::size : 0;
    const std::int64_t blocks = std::min<std::int64_t>(
        divide_up(std::max(packs, count - packs * Vector<T>::size), hash_threads), 8 * multiprocessors_);
    enqueue(weights_hash_kernel<T>, blocks, hash_threads, 0, stream_, reinterpret_cast<HashSum*>(op.hash), x,
            packs, count, static_cast<std::uint64_t>(op.first_element));
  });
}

}  // namespace goat::GOAT_TARGET
