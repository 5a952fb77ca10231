// What enqueued work reads and writes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace goat {

struct MemoryAccess {
  const void* memory = nullptr;
  std::size_t bytes = 0;
  bool writes = false;  // or reads and writes
  std::string what;     // for messages: "out of layernorm_forward"
};

// The operands that Signatures check (signature.h) while `check` runs on this thread. The parts of a strided
// operand along its first dimension are accesses of their own, up to 64 of them. Otherwise it counts from its
// first to its last element, with what lies between.
std::vector<MemoryAccess> accesses_of(const std::function<void()>& check);

}  // namespace goat
