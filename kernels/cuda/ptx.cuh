// Tensor-core and asynchronous-copy instructions (PTX ISA, sm_80 and later). Each has a
// counterpart for kernels/simt.
#pragma once

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

// d += a (16x16, row-major) b (16x8, column-major), bf16 in, fp32 out: mma.sync.m16n8k16. With g = lane/4 and
// t = lane%4 the fragments hold
//   a[0] (g, 2t..2t+1)  a[1] (g+8, 2t..)  a[2] (g, 2t+8..)  a[3] (g+8, 2t+8..)     rows and columns of a
//   b0 (2t..2t+1, g)    b1 (2t+8.., g)                                              rows and columns of b
//   d[0..1] (g, 2t..2t+1)  d[2..3] (g+8, 2t..)
__device__ __forceinline__ void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
#if GOAT_SIMT
  simulated_mma_bf16(d, a, b0, b1);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l%8 of
// matrix l/8 (16 bytes, aligned). Lane l receives in r[i] the elements (l/4, 2(l%4)..+1) of matrix i; with
// _transposed the elements (2(l%4)..+1, l/4).
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
#if GOAT_SIMT
  simulated_ldmatrix(r, row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}
__device__ __forceinline__ void ldmatrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
#if GOAT_SIMT
  simulated_ldmatrix(r, row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// Copies 16 bytes from global to shared memory asynchronously. valid == false writes zeros and does not read
// the source, but the source must still be a readable address.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid = true) {
#if GOAT_SIMT
  simulated_copy_async(shared, global, 16, valid ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
#endif
}

// Makes a group of the copies that this thread has started since the last call.
__device__ __forceinline__ void copy_async_commit() {
#if GOAT_SIMT
  simulated_copy_async_commit();
#else
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// Waits until at most `pending` of this thread's groups are incomplete. Other threads see the data
// after a later barrier.
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
#if GOAT_SIMT
  simulated_copy_async_wait(pending);
#else
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
#endif
}

// Adds four values of a lane to a warp's 128 floats in global memory (16-byte aligned). The order among
// callers is not fixed. place(lane, i) is the index of value i of a lane; it depends on the architecture.
// sm_90 has vector reductions: one instruction adds the four values. Older architectures need four
// instructions; each adds to 32 consecutive floats, one a lane.
struct WarpReduction {
#if GOAT_SIMT || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
  static constexpr bool vectors = true;
#else
  static constexpr bool vectors = false;
#endif
  static __device__ __forceinline__ constexpr int place(int lane, int i) {
    return vectors ? 4 * lane + i : 32 * i + lane;
  }

  static __device__ __forceinline__ void add(float* to, const float (&values)[4], int lane) {
#if !GOAT_SIMT && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "red.global.add.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(__cvta_generic_to_global(to + place(lane, 0))),
        "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
        : "memory");
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicAdd(to + place(lane, i), values[i]);
#endif
  }
};

// Writes the dynamic shared memory of a block of this kernel into the PTX, as a comment. Every launch must
// pass the same number to enqueue; otherwise the simulated kernel fails. test/test_cuda_build.py requires
// this call in every kernel that calls dynamic_shared(). It also checks that the blocks per SM which
// __launch_bounds__ asks for fit into shared memory.
template <int bytes>
__device__ __forceinline__ void state_dynamic_shared() {
#if GOAT_SIMT
  simulated_state_dynamic_shared(bytes);
#else
  asm volatile("// goat: dynamic shared memory %0" ::"n"(bytes));
#endif
}

// 2^x with the error of the special function unit (2 ulp). Results below 2^-126 become zero.
__device__ __forceinline__ float exp2_approximate(float x) {
#if GOAT_SIMT
  return std::exp2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Two values rounded to the nearest bf16; `low` in bits 0..15.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

}  // namespace goat::GOAT_TARGET
