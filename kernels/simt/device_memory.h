// Memory that was allocated for the simulated GPU: addresses, guard bands, and the race checker's data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/simt/options.h"

namespace goat::on_simt {

class GlobalShadow;  // races.h

struct Allocation {
  unsigned char* memory;
  std::size_t bytes;
  std::unique_ptr<GlobalShadow> shadow;  // the race checker makes it at the first access

  Allocation(unsigned char* memory, std::size_t bytes);
  ~Allocation();
  bool contains(const void* place, std::size_t count) const {
    const std::size_t offset = static_cast<std::size_t>(static_cast<const unsigned char*>(place) - memory);
    return offset <= bytes && count <= bytes - offset;
  }
};

class DeviceMemory {
 public:
  static DeviceMemory& instance();     // what device_allocate() has allocated
  static DeviceMemory& page_locked();  // memory of the host that the GPU's copies read and write

  explicit DeviceMemory(const char* kind) : kind_(kind) {}

  void* allocate(std::size_t bytes, bool poisoned);
  void release(void* memory);

  // The allocation that contains `place`, or that ends less than a guard band before it. Null if
  // there is none.
  Allocation* find(const void* place);
  std::size_t bytes_at(const void* memory);  // of the allocation that begins there, 0 if none does
  // Whether [place, place + bytes) is inside one allocation. Fast for the allocation of the previous call.
  bool contains(const void* place, std::size_t bytes);

  // Describes an allocation whose guard band was overwritten, or returns "". Reports each overrun once.
  std::string overrun();
  DeviceMemoryUse use();
  const char* kind() const { return kind_; }

 private:
  const char* kind_;  // for messages
  std::mutex mutex_;
  std::map<const unsigned char*, std::unique_ptr<Allocation>> allocations_;
  std::uint64_t changes_ = 1;  // number of allocations and releases so far
};

}  // namespace goat::on_simt
