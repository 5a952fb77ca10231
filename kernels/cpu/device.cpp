#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>

#include "kernels/cpu/arithmetic.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/host_memory.h"

namespace goat {

namespace {
// 128 MiB of f32. A GEMM of few rows is slow, because it repacks the weight for each chunk.
constexpr std::int64_t chunk_elements = 32 << 20;

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

void* aligned_memory(std::size_t bytes) {
  constexpr std::size_t alignment = 256;
  void* memory = std::aligned_alloc(
      alignment, (bytes + alignment - 1) / alignment * alignment + (bytes == 0 ? alignment : 0));
  if (!memory) throw std::bad_alloc();
  return memory;
}
}  // namespace

CpuDevice::CpuDevice() : workspace_(*this, aligned_memory, std::free) {
  const int threads = omp_get_max_threads();
  info_.name = "cpu";
  info_.chunk_elements = chunk_elements;
  info_.description = processor_name() + ", " + std::to_string(threads) +
                      (threads == 1 ? " thread, " : " threads, ") + cpu_arithmetic();
}

std::size_t CpuDevice::available_memory() const { return goat::available_memory(); }

void* CpuDevice::allocate(std::size_t bytes) { return aligned_memory(bytes); }
void CpuDevice::release(void* memory) noexcept { std::free(memory); }

void CpuDevice::set_zero(void* memory, std::size_t bytes) {
  if (bytes > 0) std::memset(memory, 0, bytes);
}

void CpuDevice::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // an empty tensor may have no memory
}

void CpuDevice::upload(void* device, const void* host, std::size_t bytes) { copy(device, host, bytes); }
void CpuDevice::download(void* host, const void* device, std::size_t bytes) { copy(host, device, bytes); }

}  // namespace goat
