// The counterparts of the PTX instructions in kernels/cuda/ptx.cuh and hopper.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simt/warp.h"

namespace goat::on_simt {

// ---- tensor cores, sm_80

struct MatrixProduct {
  std::uint32_t a[4], b[2];
  float d[4];
};
void multiply_fragments(void** argument, std::uint32_t mask);

GOAT_SIMT_INLINE void simulated_mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  MatrixProduct product{{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  collective(0xFFFFFFFFu, multiply_fragments, &product, 0);
  for (int i = 0; i < 4; ++i) d[i] = product.d[i];
}

struct MatrixRead {
  const void* row;
  std::uint32_t fragment[4];
};
void read_matrices(void** argument, std::uint32_t mask);
void read_matrices_transposed(void** argument, std::uint32_t mask);

GOAT_SIMT_INLINE void simulated_ldmatrix(std::uint32_t (&r)[4], const void* row, bool transposed) {
  MatrixRead read{row, {}};
  collective(0xFFFFFFFFu, transposed ? read_matrices_transposed : read_matrices, &read, 0);
  for (int i = 0; i < 4; ++i) r[i] = read.fragment[i];
}

// ---- cp.async: reads `source_bytes` bytes and sets the rest of `bytes` (4, 8 or 16) to zero

void simulated_copy_async(void* shared, const void* global, int bytes, int source_bytes);
void simulated_copy_async_commit();
void simulated_copy_async_wait(int pending);
void simulated_state_dynamic_shared(std::size_t bytes);

// ---- bar.sync, bar.arrive: barrier `id` (1 to 15) for `threads` threads, a multiple of 32

void simulated_named_barrier(int id, int threads);
void simulated_named_barrier_arrive(int id, int threads);

// ---- mbarrier, sm_90

void simulated_mbarrier_init(std::uint64_t* barrier, int arrivals);
void simulated_mbarrier_arrive(std::uint64_t* barrier, int expected_bytes);
void simulated_mbarrier_wait(std::uint64_t* barrier, int parity);

// ---- TMA, sm_90: a box of rows x 64 columns of a row-major bf16 matrix, with the 128-byte swizzle. Elements
// outside the matrix are zero.

struct SimulatedTensorMap {
  const unsigned char* base;
  int rows, columns;
  std::size_t row_bytes;
  int box_rows;
};
// Throws std::invalid_argument for arguments that the driver would refuse.
SimulatedTensorMap simulated_tensor_map(const void* base, int rows, int columns, int box_rows);
void simulated_tma_load(void* shared, const SimulatedTensorMap& map, int column, int row,
                        std::uint64_t* barrier);

// ---- wgmma m64n64k16, sm_90: d (64x64) = scale_d d + a b

struct WarpgroupProduct {
  float* d;            // 32 values of this thread
  std::uint32_t a[4];  // fragment of a, if a comes from registers
  std::uint64_t a_descriptor, b_descriptor;
  int scale_d;
};
using WarpgroupOperation = void (*)(void** argument, int warpgroup);
void warpgroup_collective(WarpgroupOperation operation, void* argument);
void start_product_shared(void** argument, int warpgroup);     // a and b in shared memory, both K-major
void start_product_registers(void** argument, int warpgroup);  // a in registers, b MN-major
void simulated_wgmma_commit();
void simulated_wgmma_wait(int pending);

}  // namespace goat::on_simt
