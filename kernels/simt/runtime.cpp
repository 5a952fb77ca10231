// The counterpart of kernels/cuda/runtime.cu: device memory is host memory, and streams complete every
// operation at once.
#include "kernels/cuda/runtime.cuh"

#include <cstring>
#include <stdexcept>
#include <thread>

#include "kernels/host_memory.h"
#include "kernels/simt/device_memory.h"
#include "kernels/simt/options.h"
#include "kernels/simt/report.h"

namespace goat::on_simt::runtime {

namespace {
// Throws for memory that a GPU's copy engine would refuse, or that is not allocated.
void require_device_memory(const void* memory, std::size_t bytes, const char* what) {
  if (bytes > 0 && !DeviceMemory::instance().contains(memory, bytes))
    throw std::runtime_error(formatted(
        "simt: %s of %zu bytes at %p: out of bounds, no device allocation holds them", what, bytes, memory));
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // an empty tensor may have no memory
}
}  // namespace

Hardware hardware() {
  const auto threads = std::to_string(std::thread::hardware_concurrency());
  return {"the CUDA kernels, simulated on " + threads + " CPU threads", options().multiprocessors,
          shared_memory_limit(options().architecture)};
}

Stream create_stream() { return nullptr; }
void destroy_stream(Stream) noexcept {}
void synchronize(Stream) {}

std::size_t free_memory() { return available_memory(); }
void* allocate(std::size_t bytes) { return device_allocate(bytes); }
void release(void* memory) noexcept {
  if (memory) device_release(memory);
}
void set_zero(void* memory, std::size_t bytes, Stream) {
  require_device_memory(memory, bytes, "set_zero");
  if (bytes > 0) std::memset(memory, 0, bytes);
}
void upload(void* device, const void* host, std::size_t bytes, Stream) {
  require_device_memory(device, bytes, "upload");
  copy_bytes(device, host, bytes);
}
void download(void* host, const void* device, std::size_t bytes, Stream) {
  require_device_memory(device, bytes, "download");
  copy_bytes(host, device, bytes);
}
void copy(void* to, const void* from, std::size_t bytes, Stream) {
  require_device_memory(to, bytes, "copy");
  require_device_memory(from, bytes, "copy");
  copy_bytes(to, from, bytes);
}

}  // namespace goat::on_simt::runtime
