// Memory and stream of a CudaDevice.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/open.h"
#include "kernels/cuda/runtime.cuh"

namespace goat::GOAT_TARGET {

namespace {
// The loaded code itself reports the families that it holds, because the driver chose it or
// compiled it from PTX.
__global__ void __launch_bounds__(32) report_families_kernel(LoadedFamilies* families) {
  if (threadIdx.x == 0) *families = {compiled_for<Family::large_shared>, compiled_for<Family::small_shared>};
}
}  // namespace

CudaDevice::CudaDevice() : workspace_(*this, runtime::allocate, runtime::release) {
  const runtime::Hardware hardware = runtime::hardware();
  info_ = {GOAT_SIMT ? "simt" : "cuda", hardware.description};
  multiprocessors_ = hardware.multiprocessors;
  stream_ = runtime::create_stream();
  LoadedFamilies families{};
  const DeviceBuffer answer(*this, sizeof families);
  enqueue(report_families_kernel, 1, 32, 0, stream_, static_cast<LoadedFamilies*>(answer.data()));
  runtime::download(&families, answer.data(), sizeof families, stream_);
  family_ = choose_family(hardware.shared_limit, families);
  gemm_ = std::make_unique<Gemm>(stream_);
}

CudaDevice::~CudaDevice() {
  gemm_.reset();
  runtime::destroy_stream(stream_);
}

std::size_t CudaDevice::available_memory() const { return runtime::free_memory(); }
void* CudaDevice::allocate(std::size_t bytes) { return runtime::allocate(bytes); }

// Waits for work that still uses the memory: cudaFree waits, and simulated work is always complete.
void CudaDevice::release(void* memory) noexcept { runtime::release(memory); }

void CudaDevice::set_zero(void* memory, std::size_t bytes) { runtime::set_zero(memory, bytes, stream_); }
void CudaDevice::upload(void* device, const void* host, std::size_t bytes) {
  runtime::upload(device, host, bytes, stream_);
}
void CudaDevice::download(void* host, const void* device, std::size_t bytes) {
  runtime::download(host, device, bytes, stream_);
}
void CudaDevice::copy(void* to, const void* from, std::size_t bytes) {
  runtime::copy(to, from, bytes, stream_);
}
void CudaDevice::synchronize() { runtime::synchronize(stream_); }

std::unique_ptr<Device> open_device() { return std::make_unique<CudaDevice>(); }

}  // namespace goat::GOAT_TARGET
