// The functions of the CUDA runtime that a device uses. runtime.cu implements it with CUDA,
// kernels/simt/runtime.cpp for the simulated GPU. Errors throw std::runtime_error, or std::bad_alloc
// if memory is short.
#pragma once

#include <string>

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET::runtime {

struct Hardware {
  std::string description;  // for example "NVIDIA H100 80GB HBM3, 132 SMs, compute capability 9.0"
  int multiprocessors = 1;
  std::size_t shared_limit = 0;  // bytes of shared memory that a block may have
};

Hardware hardware();
Stream create_stream();
void destroy_stream(Stream stream) noexcept;
void synchronize(Stream stream);

std::size_t free_memory();
void* allocate(std::size_t bytes);
void release(void* memory) noexcept;
void set_zero(void* memory, std::size_t bytes, Stream stream);
// The caller may reuse the host memory after the return.
void upload(void* device, const void* host, std::size_t bytes, Stream stream);
// The bytes are in `host` at the return.
void download(void* host, const void* device, std::size_t bytes, Stream stream);
void copy(void* to, const void* from, std::size_t bytes, Stream stream);

}  // namespace goat::GOAT_TARGET::runtime
