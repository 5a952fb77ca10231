// Instructions of sm_90a: mbarriers, copies by the tensor memory accelerator (TMA), warpgroup matrix products
// (wgmma). Each has a counterpart for kernels/simt. Code for other architectures must not instantiate them.
#pragma once

#include "kernels/cuda/ptx.cuh"

#if !GOAT_SIMT
#include <cuda.h>
#endif

namespace goat::GOAT_TARGET {

// ---- A row-major bf16 matrix in device memory for TMA. TMA copies boxes of box_rows x 64 elements to shared
// memory with the 128-byte swizzle.

#if GOAT_SIMT
using TensorMap = SimulatedTensorMap;
#else
struct TensorMap {  // 64-byte aligned, like CUtensorMap
  CUtensorMap map;
};
#endif

// `matrix` and its rows must begin at multiples of 16 bytes. Throws std::invalid_argument or
// std::runtime_error if the driver refuses.
inline TensorMap make_tensor_map(const bf16* matrix, int rows, int columns, int box_rows) {
#if GOAT_SIMT
  return simulated_tensor_map(matrix, rows, columns, box_rows);
#else
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    throw std::runtime_error("CUDA: the driver has no cuTensorMapEncodeTiled; it is older than CUDA 12");
  TensorMap result{};
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(columns) * sizeof(bf16)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t step[2] = {1, 1};
  const CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &result.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16*>(matrix), size, row_bytes, box, step,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw std::runtime_error("CUDA: cuTensorMapEncodeTiled fails with status " + std::to_string(status));
  return result;
#endif
}

// ---- mbarriers: a phase ends when `arrivals` threads have arrived and all announced bytes have been copied.

__device__ __forceinline__ void mbarrier_init(std::uint64_t* barrier, int arrivals) {
#if GOAT_SIMT
  simulated_mbarrier_init(barrier, arrivals);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
#endif
}
// Call this after the last mbarrier_init and before the __syncthreads() after which other
// threads use the barriers.
__device__ __forceinline__ void mbarrier_init_fence() {
#if !GOAT_SIMT
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* barrier) {
#if GOAT_SIMT
  simulated_mbarrier_arrive(barrier, 0);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(barrier)) : "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint64_t* barrier, int bytes) {
#if GOAT_SIMT
  simulated_mbarrier_arrive(barrier, bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
#endif
}
// Returns when the phase of this parity has ended. The first phase has parity 0.
__device__ __forceinline__ void mbarrier_wait(std::uint64_t* barrier, int parity) {
#if GOAT_SIMT
  simulated_mbarrier_wait(barrier, parity);
#else
  asm volatile(
      "{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra "
      "again_%=;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

// Starts the copy of the box at (row, column) to `shared` (1024-byte aligned). The copy counts as 128
// box_rows bytes on the mbarrier. One thread calls this.
__device__ __forceinline__ void tma_load(void* shared, const TensorMap& map, int column, int row,
                                         std::uint64_t* barrier) {
#if GOAT_SIMT
  simulated_tma_load(shared, map, column, row, barrier);
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];\n" ::"r"(shared_address(shared)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
#endif
}

// ---- wgmma m64n64k16, bf16 in, fp32 out. The element in row i and column n of d is
// d[n/8*4 + i%16/8*2 + n%2] of thread i/16*32 + i%8*4 + n%8/2.

// The descriptor of a tile with rows of 128 bytes in the 128-byte swizzle. Add 2 to it for 16 elements
// further along a row, and 128 for 16 rows further.
__device__ __forceinline__ std::uint64_t wgmma_descriptor(const void* tile) {
  return static_cast<std::uint64_t>((shared_address(tile) & 0x3FFFF) >> 4) | std::uint64_t{1} << 16 |
         std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}
// Call this before the first product after writes to its registers or its shared memory.
__device__ __forceinline__ void wgmma_fence() {
#if !GOAT_SIMT
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#if GOAT_SIMT
  simulated_wgmma_commit();
#else
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}
// Waits until at most `pending` groups are incomplete. Before that, the code must not touch the accumulators
// or register operands.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
#if GOAT_SIMT
  simulated_wgmma_wait(pending);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
#endif
}

#if !GOAT_SIMT
#define GOAT_WGMMA_8(i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define GOAT_WGMMA_D                                                                                         \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%" \
  "28,%29,%30,%31}"
#endif

// d = scale_d d + a b^T. a is 64 x 16 and b is 64 x 16, both in shared memory with rows along k.
// scale_d is 0 or 1.
__device__ __forceinline__ void wgmma_shared(float (&d)[32], std::uint64_t a, std::uint64_t b, int scale_d) {
#if GOAT_SIMT
  WarpgroupProduct product{d, {}, a, b, scale_d};
  warpgroup_collective(start_product_shared, &product);
#else
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " GOAT_WGMMA_D
      ", %32, %33, accumulate, 1, 1, 0, 0;\n}\n"
      : GOAT_WGMMA_8(0), GOAT_WGMMA_8(8), GOAT_WGMMA_8(16), GOAT_WGMMA_8(24)
      : "l"(a), "l"(b), "r"(scale_d));
#endif
}

// d = scale_d d + a b. a is 64 x 16 in registers: the fragment of mma_bf16, where warp w has the rows from 16
// w on. b is 16 x 64 in shared memory with rows along n.
__device__ __forceinline__ void wgmma_registers(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                                                int scale_d) {
#if GOAT_SIMT
  WarpgroupProduct product{d, {a[0], a[1], a[2], a[3]}, 0, b, scale_d};
  warpgroup_collective(start_product_registers, &product);
#else
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " GOAT_WGMMA_D
      ", {%32,%33,%34,%35}, %36, accumulate, 1, 1, 1;\n}\n"
      : GOAT_WGMMA_8(0), GOAT_WGMMA_8(8), GOAT_WGMMA_8(16), GOAT_WGMMA_8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d));
#endif
}

#if !GOAT_SIMT
#undef GOAT_WGMMA_8
#undef GOAT_WGMMA_D
#endif

}  // namespace goat::GOAT_TARGET
