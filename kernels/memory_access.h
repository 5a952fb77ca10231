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

// The operands that Signatures check (signature.h) while `check` runs on this thread. A strided operand
// counts from its first to its last element, with what lies between its rows.
std::vector<MemoryAccess> accesses_of(const std::function<void()>& check);

}  // namespace goat
