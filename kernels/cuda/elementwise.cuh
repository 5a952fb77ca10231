// Kernels that process elements or rows independently, a few consecutive elements at a time.
#pragma once

#include <algorithm>

#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

// `count` consecutive elements: one at any address, or whole vectors at a 16-byte aligned address.
template <class T, int count>
struct Pack {
  static constexpr int size = count;
  static constexpr int vectors = count / Vector<T>::size;
  static_assert(count == 1 || count % Vector<T>::size == 0);
  T element[count];

  static __device__ __forceinline__ Pack load(const T* source) {
    Pack pack;
    if constexpr (count == 1) {
      pack.element[0] = *source;
    } else {
#pragma unroll
      for (int i = 0; i < vectors; ++i) {
        const Vector<T> vector = Vector<T>::load(source + i * Vector<T>::size);
#pragma unroll
        for (int j = 0; j < Vector<T>::size; ++j) pack.element[i * Vector<T>::size + j] = vector.element[j];
      }
    }
    return pack;
  }
  __device__ __forceinline__ void store(T* target) const {
    if constexpr (count == 1) {
      *target = element[0];
    } else {
#pragma unroll
      for (int i = 0; i < vectors; ++i) {
        Vector<T> vector;
#pragma unroll
        for (int j = 0; j < Vector<T>::size; ++j) vector.element[j] = element[i * Vector<T>::size + j];
        vector.store(target + i * Vector<T>::size);
      }
    }
  }
  __device__ __forceinline__ float operator[](int i) const { return to_float(element[i]); }
  __device__ __forceinline__ void set(int i, float value) { element[i] = from_float<T>(value); }
};

constexpr int elementwise_threads = 256;
constexpr int most_row_threads = 256;  // the largest result of threads_for_row()

// operation.template apply<n>(at) processes the elements at .. at+n-1. The first `packs` threads use
// n = Operation::step; the others use n = 1.
template <class Operation>
__global__ void __launch_bounds__(elementwise_threads)
    elementwise_kernel(Operation operation, std::int64_t packs, std::int64_t count) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread < packs) {
    operation.template apply<Operation::step>(thread * Operation::step);
  } else {
    const std::int64_t at = packs * Operation::step + (thread - packs);
    if (at < count) operation.template apply<1>(at);
  }
}

// Applies the operation to `count` elements. `aligned`: all arrays are 16-byte aligned; then a thread takes
// Operation::step elements, otherwise one.
template <class Operation>
void enqueue_elementwise(Stream stream, const Operation& operation, std::int64_t count, bool aligned) {
  const std::int64_t packs = aligned ? count / Operation::step : 0;
  const std::int64_t work = packs + (count - packs * Operation::step);
  if (work == 0) return;
  enqueue(elementwise_kernel<Operation>, divide_up(work, elementwise_threads), elementwise_threads, 0, stream,
          operation, packs, count);
}

template <class... T>
bool aligned_to_16(const T*... memory) {
  return ((reinterpret_cast<std::uintptr_t>(memory) % 16 == 0) && ...);
}

// The number of threads for a row of `packs`: one thread for each pack, but at most most_row_threads.
inline int threads_for_row(std::int64_t packs) {
  return static_cast<int>(
      std::min<std::int64_t>(most_row_threads, std::max<std::int64_t>(1, divide_up(packs, 32)) * 32));
}

}  // namespace goat::GOAT_TARGET
