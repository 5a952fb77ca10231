// The calls of the CUDA runtime that a device makes.
#include "kernels/cuda/runtime.cuh"

#include <new>

namespace goat::on_cuda::runtime {

namespace {
__global__ void __launch_bounds__(32) probe() {}
}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

Hardware hardware() {
  int device = 0;
  check_cuda(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device));
  cudaFuncAttributes code{};
  check_cuda(cudaFuncGetAttributes(&code, probe));
  return {std::string(properties.name) + ", " + std::to_string(properties.multiProcessorCount) +
              " SMs, compute capability " + std::to_string(properties.major) + "." +
              std::to_string(properties.minor),
          properties.multiProcessorCount, 10 * code.ptxVersion};
}

Stream create_stream() {
  Stream stream{};
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void destroy_stream(Stream stream) noexcept { cudaStreamDestroy(stream); }
void synchronize(Stream stream) { check_cuda(cudaStreamSynchronize(stream)); }

std::size_t free_memory() {
  std::size_t free_bytes = 0, total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes > 0 ? bytes : 1);  // an address even for nothing
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check_cuda(status);
  return memory;
}

void release(void* memory) noexcept { cudaFree(memory); }
void set_zero(void* memory, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemsetAsync(memory, 0, bytes, stream));
}

// From pageable memory the call returns once the bytes have been staged.
void upload(void* device, const void* host, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}

void download(void* host, const void* device, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
  synchronize(stream);
}

void copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

}  // namespace goat::on_cuda::runtime
