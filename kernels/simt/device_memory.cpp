#include "kernels/simt/device_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/simt/execution.h"
#include "kernels/simt/races.h"
#include "kernels/simt/report.h"
#include "kernels/simt/sanitizers.h"
#include "kernels/simt/streams.h"

namespace goat::on_simt {

namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t guard = 64;
constexpr unsigned char guard_byte = 0xA5;

std::size_t with_guard(std::size_t bytes) { return (bytes + guard + alignment - 1) / alignment * alignment; }

void report_leaks() {
  if (!options().leaks) return;
  for (DeviceMemory* memory : {&DeviceMemory::instance(), &DeviceMemory::page_locked()})
    if (const DeviceMemoryUse use = memory->use(); use.allocations > 0)
      std::fprintf(stderr, "simt: %zu allocations of %s were never released, %zu bytes\n", use.allocations,
                   memory->kind(), use.bytes);
}

}  // namespace

Allocation::Allocation(unsigned char* start, std::size_t size) : memory(start), bytes(size) {}
Allocation::~Allocation() {
  unpoison(memory, with_guard(bytes));
  std::free(memory);
}

// Never destroyed, because devices of static duration may outlive all other objects.
DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory& memory = *[] {
    std::atexit(report_leaks);
    return new DeviceMemory("device memory");
  }();
  return memory;
}
DeviceMemory& DeviceMemory::page_locked() {
  static DeviceMemory& memory = *new DeviceMemory("page-locked memory");
  return memory;
}

void* DeviceMemory::allocate(std::size_t bytes, bool poisoned) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  auto* memory = static_cast<unsigned char*>(std::aligned_alloc(alignment, with_guard(bytes)));
  if (!memory) throw std::bad_alloc();
  if (poisoned) std::memset(memory, 0xFF, bytes);
  std::memset(memory + bytes, guard_byte, guard);
  poison(memory + bytes, with_guard(bytes) - bytes);
  const std::lock_guard lock(mutex_);
  allocations_.emplace(memory, std::make_unique<Allocation>(memory, bytes));
  ++changes_;
  return memory;
}

void DeviceMemory::release(void* memory) {
  const std::lock_guard lock(mutex_);
  if (allocations_.erase(static_cast<unsigned char*>(memory)) == 0)
    throw std::runtime_error(
        formatted("simt: %s %p is released that is not allocated, or is released twice", kind_, memory));
  ++changes_;
}

Allocation* DeviceMemory::find(const void* place) {
  const std::lock_guard lock(mutex_);
  auto after = allocations_.upper_bound(static_cast<const unsigned char*>(place));
  if (after == allocations_.begin()) return nullptr;
  Allocation* allocation = std::prev(after)->second.get();
  const std::size_t offset =
      static_cast<std::size_t>(static_cast<const unsigned char*>(place) - allocation->memory);
  return offset < allocation->bytes + guard ? allocation : nullptr;
}

std::size_t DeviceMemory::bytes_at(const void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(static_cast<const unsigned char*>(memory));
  return found == allocations_.end() ? 0 : found->second->bytes;
}

bool DeviceMemory::contains(const void* place, std::size_t bytes) {
  struct Latest {
    const DeviceMemory* of = nullptr;
    std::uint64_t changes = 0;
    const unsigned char* memory = nullptr;
    std::size_t bytes = 0;
  };
  static constinit thread_local Latest latest;
  const auto inside = [&] {
    const std::size_t offset =
        static_cast<std::size_t>(static_cast<const unsigned char*>(place) - latest.memory);
    return offset <= latest.bytes && bytes <= latest.bytes - offset;
  };
  if (latest.of == this && latest.changes == std::atomic_ref(changes_).load(std::memory_order_relaxed) &&
      inside())
    return true;
  const Allocation* allocation = find(place);
  if (!allocation) return false;
  latest = {this, std::atomic_ref(changes_).load(std::memory_order_relaxed), allocation->memory,
            allocation->bytes};
  return inside();
}

std::string DeviceMemory::overrun() {
  if (address_sanitizer) return "";
  const std::lock_guard lock(mutex_);
  for (auto& [memory, allocation] : allocations_) {
    unsigned char* end = allocation->memory + allocation->bytes;
    if (std::all_of(end, end + guard, [](unsigned char byte) { return byte == guard_byte; })) continue;
    std::memset(end, guard_byte, guard);
    return formatted("an allocation of %zu bytes of device memory", allocation->bytes);
  }
  return "";
}

DeviceMemoryUse DeviceMemory::use() {
  const std::lock_guard lock(mutex_);
  DeviceMemoryUse total;
  for (const auto& [memory, allocation] : allocations_) {
    ++total.allocations;
    total.bytes += allocation->bytes;
  }
  return total;
}

DeviceMemoryUse device_memory_use() { return DeviceMemory::instance().use(); }
void* device_allocate(std::size_t bytes) {
  return DeviceMemory::instance().allocate(bytes, options().poison);
}
void device_release(void* memory) {
  StreamQueues::instance().finish_all();
  StreamQueues::instance().forget(memory, DeviceMemory::instance().bytes_at(memory));
  DeviceMemory::instance().release(memory);
}

}  // namespace goat::on_simt
