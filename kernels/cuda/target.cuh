// The kernels are one CUDA C++ source for two targets. nvcc compiles it for the GPU (namespace
// goat::on_cuda). The host compiler compiles the same files against kernels/simt, which runs them thread by
// thread on the CPU (namespace goat::on_simt). Every file of kernels/cuda includes this header first and
// follows the rules in kernels/simt/simt.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/grid.h"

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstring>
#include <source_location>
#include <stdexcept>
#include <string>

#include "kernels/device_lost.h"

namespace goat::on_cuda {

using Stream = cudaStream_t;
using Event = cudaEvent_t;
using Graph = cudaGraphExec_t;
using bf16 = __nv_bfloat16;

// Throws std::runtime_error or DeviceLost with CUDA's message and the source line of the call. Clears the
// error, except an error that ends the context.
inline void check_cuda(cudaError_t status,
                       const std::source_location where = std::source_location::current()) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw_cuda_error(cudaGetErrorName(status), cudaGetErrorString(status),
                   std::string(where.file_name()) + ":" + std::to_string(where.line()));
}

// The block's dynamic shared memory, 1024-byte aligned. enqueue() sets its size.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char goat_dynamic_shared[];
  return reinterpret_cast<T*>(goat_dynamic_shared);
}

// The 32-bit address of a place in shared memory, as PTX instructions need it.
__device__ __forceinline__ std::uint32_t shared_address(const void* place) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
}

// Enqueues kernel<<<grid, block, shared_bytes, stream>>>(arguments...). Throws std::runtime_error for a
// launch that a GPU would refuse.
template <class... Parameters, class... Arguments>
void enqueue(void (*kernel)(Parameters...), Grid grid, dim3 block, std::size_t shared_bytes, Stream stream,
             Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "enqueue: wrong number of kernel arguments");
  if (const std::string fault = launch_fault(grid, block); !fault.empty()) {
    const char* name = "";
    cudaFuncGetName(&name, reinterpret_cast<const void*>(kernel));
    throw std::runtime_error(std::string("CUDA: ") + name + " cannot start: " + fault);
  }
  if (shared_bytes > 48 * 1024)  // CUDA requires a request for more than 48 KiB
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)));
  cudaLaunchConfig_t config{};
  config.gridDim = checked_size(grid);
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

template <class T>
using SharedType = T;  // so that GOAT_SHARED can take array types

}  // namespace goat::on_cuda

// GOAT_SHARED(name, float[32]); declares a variable in the block's static shared memory.
#define GOAT_SHARED(name, ...) __shared__ ::goat::on_cuda::SharedType<__VA_ARGS__> name

#else
#include "kernels/simt/simt.h"
#endif
