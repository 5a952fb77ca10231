// What the tensor-core attention kernels do for the compiler alone. Nothing in this file changes a result.
//
// A thread has up to 192 accumulators in its 255 registers. Two habits of nvcc would make it spill:
//   * nvcc computes what a loop does not change (thread and block indices, addresses) before the loop and
//     keeps it in registers until the loop ends. opaque() and the functions *_now() return values of which
//     nvcc knows nothing, so it computes what depends on them after the call.
//   * An array stays in registers only if the compiler knows every index. So loops over accumulators are
//     unrolled. The loop over the steps must not be: its body is the whole kernel.
#pragma once

#include "kernels/cuda/attention/attention_traits.cuh"
#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

// Returns `value`, but the compiler knows nothing about the result.
__device__ __forceinline__ int opaque(int value) {
#if !GOAT_SIMT
  asm volatile("" : "+r"(value));
#endif
  return value;
}
template <class T>
__device__ __forceinline__ T* opaque(T* pointer) {
#if !GOAT_SIMT
  asm volatile("" : "+l"(pointer));
#endif
  return pointer;
}

__device__ __forceinline__ int thread_now() { return opaque(static_cast<int>(threadIdx.x)); }
__device__ __forceinline__ int lane_now() { return opaque(static_cast<int>(threadIdx.x) % 32); }

// blockIdx, read at this point.
__device__ __forceinline__ int block_index_now(int dimension) {
#if GOAT_SIMT
  return static_cast<int>(dimension == 0 ? blockIdx.x : dimension == 1 ? blockIdx.y : blockIdx.z);
#else
  int index;
  if (dimension == 0)
    asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(index));
  else if (dimension == 1)
    asm volatile("mov.u32 %0, %%ctaid.y;\n" : "=r"(index));
  else
    asm volatile("mov.u32 %0, %%ctaid.z;\n" : "=r"(index));
  return index;
#endif
}
// The grids are (tiles of rows, H, B), in the pass over keys (tiles of rows, H_k, B).
__device__ __forceinline__ int tile_now() { return block_index_now(0); }
__device__ __forceinline__ int head_now() { return block_index_now(1); }
__device__ __forceinline__ int sequence_now() { return block_index_now(2); }

// Calls body(0), body(1), .. body(count - 1).
template <int count, class Body>
__device__ __forceinline__ void unrolled(Body&& body) {
#pragma unroll
  for (int i = 0; i < count; ++i) body(i);
}

// Calls body(step) for step, step - 1, .. last(), and returns the step after them.
template <class Last, class Body>
__device__ __forceinline__ int count_down_to(int step, Last&& last, Body&& body) {
#pragma unroll 1
  for (; step >= last(); --step) body(step);
  return step;
}
template <class Body>
__device__ __forceinline__ int count_down(int step, int last, Body&& body) {
  return count_down_to(
      step, [&] { return last; }, body);
}

// Whether the forward pass computes the addresses of K and V again in every step. With 192 accumulators this
// gives fewer spills; with 128 or fewer the addresses can stay in registers.
template <int D, Family family>
constexpr bool forward_needs_new_addresses = D == 128 && family == Family::large_shared;

// Choices in the pass over keys. ptxas spills least with these.
template <Family family, Terms kind, bool deterministic>
struct KeysChoices {
  // lse and delta of the next step are fetched and stored at the beginning of a step. Otherwise they are
  // fetched when P and dS are computed and stored at the end. The key bias is fetched between the products
  // for dV and dK.
  static constexpr bool early_scalars = !deterministic && kind == Terms::none;
  // The addresses for dV and dK are computed again, after those for P and dS.
  static constexpr bool new_addresses = deterministic;
  // The bounds of the walk are computed again at every step.
  static constexpr bool new_bounds = kind == Terms::slope && family == Family::large_shared;
};

}  // namespace goat::GOAT_TARGET
