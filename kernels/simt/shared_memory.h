// The shared memory of the block that a host thread runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/simt/execution.h"

namespace goat::on_simt {

// One region, reused by every block: dynamic memory, then the static variables. A guard band follows
// each of them.
class SharedMemory {
 public:
  SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  void start_launch(std::size_t dynamic_bytes, std::size_t limit, bool poisoned);
  void start_block();
  // The address of the variable. It is placed when the first thread of the launch asks for it. Throws
  // std::runtime_error if the block would exceed its limit.
  void* variable(const SharedVariable& variable) {
    if (!variables_.empty() && variables_[0].variable == &variable) return region_ + variables_[0].offset;
    return find(variable);
  }

  unsigned char* region() const { return region_; }
  std::size_t used() const { return end_ + guard; }
  bool contains(const void* place) const { return offset(place) < capacity; }
  std::size_t offset(const void* place) const {
    return static_cast<std::size_t>(static_cast<const unsigned char*>(place) - region_);
  }
  // Whether [place, place + bytes) is inside the dynamic memory or inside one variable.
  bool valid(const void* place, std::size_t bytes) const {
    return offset(place) + bytes <= dynamic_bytes_ && offset(place) < capacity ? true
                                                                               : in_variable(place, bytes);
  }
  std::string describe(const void* place) const;  // "partial[+12]", "dynamic shared memory[+64]"
  // The variable whose guard band was overwritten, or "". AddressSanitizer reports the write itself.
  std::string overrun() const;

  static constexpr std::size_t capacity = 512 * 1024;

 private:
  struct Placed {
    const SharedVariable* variable;
    std::size_t offset;
  };
  static constexpr std::size_t guard = 64;
  static constexpr unsigned char guard_byte = 0xA5;

  void* find(const SharedVariable& variable);
  bool in_variable(const void* place, std::size_t bytes) const;
  void guard_end();
  bool guard_intact(std::size_t end) const;

  unsigned char* region_;
  std::size_t dynamic_bytes_ = 0;
  std::size_t static_bytes_ = 0;
  std::size_t end_ = 0;  // end of the last variable
  std::size_t limit_ = 0;
  bool poisoned_ = true;
  std::vector<Placed> variables_;
};

}  // namespace goat::on_simt
