// 16-byte vectors of model elements (4 float or 8 bf16). One instruction reads or writes a vector.
// Arithmetic uses fp32.
#pragma once

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bf16 value) { return __bfloat162float(value); }
// Rounded to nearest, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
  return __float2bfloat16(value);
}

template <class T>
struct alignas(16) Vector {
  static constexpr int size = 16 / sizeof(T);
  T element[size];

  // `source` and `target` must be 16-byte aligned.
  static __device__ __forceinline__ Vector load(const T* source) {
    return of_bits(*reinterpret_cast<const uint4*>(source));
  }
  __device__ __forceinline__ void store(T* target) const { *reinterpret_cast<uint4*>(target) = bits(); }

  __device__ __forceinline__ float operator[](int i) const { return to_float(element[i]); }
  __device__ __forceinline__ void set(int i, float value) { element[i] = from_float<T>(value); }

 private:
  static __device__ __forceinline__ Vector of_bits(uint4 bits) {
    Vector vector;
    memcpy(&vector, &bits, sizeof bits);
    return vector;
  }
  __device__ __forceinline__ uint4 bits() const {
    uint4 result;
    memcpy(&result, this, sizeof result);
    return result;
  }
};

// Whether rows of `width` elements that start at `memory` can be read as vectors.
template <class T>
bool vectorizable(const T* memory, std::int64_t width) {
  return width % Vector<T>::size == 0 && reinterpret_cast<std::uintptr_t>(memory) % 16 == 0;
}

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace goat::GOAT_TARGET
