// What device_allocate() has handed out: addresses, guard bands, and the race checker's notes.
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
  std::unique_ptr<GlobalShadow> shadow;  // made by the race checker at the first access

  Allocation(unsigned char* memory, std::size_t bytes);
  ~Allocation();
  bool contains(const void* place, std::size_t count) const {
    const std::size_t offset = static_cast<std::size_t>(static_cast<const unsigned char*>(place) - memory);
    return offset <= bytes && count <= bytes - offset;
  }
};

class DeviceMemory {
 public:
  static DeviceMemory& instance();

  void* allocate(std::size_t bytes, bool poisoned);
  void release(void* memory);

  // The allocation that holds `place`, or ends less than a guard band before it; null if there is none.
  Allocation* find(const void* place);
  // Tells whether [place, place + bytes) lies in one allocation; quick where that is the one asked for last.
  bool contains(const void* place, std::size_t bytes);

  // Which allocation something has written behind, "" if none. Only once for each.
  std::string overrun();
  DeviceMemoryUse use();

 private:
  std::mutex mutex_;
  std::map<const unsigned char*, std::unique_ptr<Allocation>> allocations_;
  std::uint64_t changes_ = 1;  // allocations and releases so far
};

}  // namespace goat::on_simt
