// Sums and maxima over a warp or a block in a fixed order, so that every run gives the same bits.
#pragma once

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

constexpr unsigned all_lanes = 0xFFFFFFFFu;

// A butterfly: every lane receives the result.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(all_lanes, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(all_lanes, value, offset));
  return value;
}

// The sum of terms[0 .. count). A whole warp calls this; every lane receives the sum.
__device__ __forceinline__ double warp_total(const double* terms, int count) {
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32) total += terms[i];
  return warp_sum(total);
}

// The sum (maximum) over a block of `threads` threads. All of them call this, and all receive the result.
// Contains two barriers.
template <int threads, class T>
__device__ __forceinline__ T block_sum(T value) {
  static_assert(threads % 32 == 0 && threads <= 1024);
  GOAT_SHARED(partial, T[threads / 32]);
  value = warp_sum(value);
  __syncthreads();  // other warps may still read the sums of the previous call
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  T total = partial[0];
#pragma unroll
  for (int warp = 1; warp < threads / 32; ++warp) total += partial[warp];
  return total;
}
template <int threads>
__device__ __forceinline__ float block_max(float value) {
  static_assert(threads % 32 == 0 && threads <= 1024);
  GOAT_SHARED(partial, float[threads / 32]);
  value = warp_max(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = partial[0];
#pragma unroll
  for (int warp = 1; warp < threads / 32; ++warp) largest = fmaxf(largest, partial[warp]);
  return largest;
}

}  // namespace goat::GOAT_TARGET
