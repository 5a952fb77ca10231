// Executes CUDA C++ sources on the CPU. A file of kernels/cuda includes this header instead of CUDA if the
// host compiler compiles it (namespace goat::on_simt). Every thread of a block is a fiber. __syncthreads and
// the collectives of a warp are real rendezvous. Tensor-core instructions and asynchronous copies are
// emulated. The CUDA runtime is neither called nor linked: only its headers are needed.
//
// Rules for kernel sources
//  1. Everything is in `namespace goat::GOAT_TARGET`, including kernels. No symbol may be shared with nvcc's
//      build of the same source, because the linker would keep only one of the two.
//  2. Kernels start through enqueue(kernel, grid, block, shared_bytes, stream, arguments...), never <<<>>>.
//  3. Shared memory: GOAT_SHARED(name, type) for static, dynamic_shared<T>() for dynamic memory, so that it
//      can be poisoned and checked.
//  4. PTX is only in kernels/cuda/ptx.cuh and hopper.cuh, beside its counterpart (instructions.h).
//  5. No thread returns before the last __syncthreads, and none calls it in divergent code.
//  6. The mask of a collective names exactly the lanes that call it. Lanes that exchange data through memory
//      need __syncwarp or a barrier in between.
//  7. A block must not wait for another block or for memory to change, because blocks run one after another.
//      Tickets for the last block are allowed (__threadfence first).
//  8. Vectors are read and written at multiples of their size. bf16 arithmetic is done in float, because
//      __hfma and similar functions do not exist on the host.
//  9. No clusters, textures, dynamic parallelism, <cooperative_groups>, and no `extern __shared__`.
//
// Defects that are found, by build (test/test_simt_*.cpp plants each defect):
// * always: a wrong barrier, warp divergence, missing lanes, limits of the GPU, misplaced asynchronous copies
//   and misaligned intrinsics; copies of the host that are out of bounds, or of ordinary memory where they
//   need page-locked memory;
// * a stream that does not wait for another one; with Options::streams late, a host that does not;
// * with -fsanitize=address,undefined: memory errors and misaligned plain vectors;
// * with kernels compiled with -fsanitize=thread (race_hooks.cpp): races, uninitialised shared memory
//   and missing waits.
// Sources should be compiled with -g, because reports name source lines.
//
// Not simulated: the rounding inside tensor cores and of ex2.approx, weak memory ordering, the effect of a
// missing fence.proxy.async or wgmma.fence, and speed.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Makes CUDA's own keywords readable for the host compiler.
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#undef __grid_constant__
#define __grid_constant__
#undef __shared__
#define __shared__ static_assert(false, "use GOAT_SHARED(name, type) or dynamic_shared<T>()");
#define __builtin_assume(condition) static_cast<void>(0)

#include "kernels/simt/execution.h"
#include "kernels/simt/instructions.h"
#include "kernels/simt/intrinsics.h"
#include "kernels/simt/options.h"
#include "kernels/simt/warp.h"

#define threadIdx (::goat::on_simt::current_thread->index)
#define blockIdx (::goat::on_simt::current_block->index)
#define blockDim (::goat::on_simt::current_block->size)
#define gridDim (::goat::on_simt::current_block->grid)

// GOAT_SHARED(name, float[32]); declares a variable in the block's static shared memory.
#define GOAT_SHARED(name, ...)                                                                              \
  static constinit ::goat::on_simt::SharedVariable goat_simt_##name{                                        \
      #name, __FILE__, __LINE__, sizeof(::goat::on_simt::SharedType<__VA_ARGS__>),                          \
      alignof(::goat::on_simt::SharedType<__VA_ARGS__>)};                                                   \
  [[maybe_unused]] auto& name = *static_cast<std::add_pointer_t<::goat::on_simt::SharedType<__VA_ARGS__>>>( \
      ::goat::on_simt::shared_variable(goat_simt_##name))

#define __trap() ::goat::on_simt::trap(__FILE__, __LINE__)
