#include "kernels/workspace.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace goat {

WorkspaceMemory Workspace::use(WorkspaceMemory memory) {
  if (reinterpret_cast<std::uintptr_t>(memory.data) % 256 != 0)
    throw std::invalid_argument("use_workspace: the memory does not begin at a multiple of 256 bytes");
  return std::exchange(given_, memory);
}

void* Workspace::take(const char* operation, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* const memory = memory_for(operation, bytes);
  if (device_.watches_accesses()) {
    const MemoryAccess access{memory, bytes, true, std::string("the workspace of ") + operation};
    device_.note_accesses({&access, 1});
  }
  return memory;
}

void* Workspace::memory_for(const char* operation, std::size_t bytes) {
  if (given_.data) {
    if (bytes > given_.bytes)
      throw std::logic_error(std::string(operation) + ": needs a workspace of " + std::to_string(bytes) +
                             " bytes, but use_workspace gave " + std::to_string(given_.bytes) +
                             "; WorkspaceSurvey finds the largest that a pass needs");
    return given_.data;
  }
  if (own_refused_ && *own_refused_)
    throw std::logic_error(std::string(operation) + ": recorded work needs a workspace of " +
                           std::to_string(bytes) +
                           " bytes that stays where it is; give one with WorkspaceScope");
  if (bytes > own_bytes_) {
    own_.reset();  // first, so that the old and the new memory need not fit together
    own_bytes_ = 0;
    own_.reset(allocate_(bytes));
    own_bytes_ = bytes;
  }
  return own_.get();
}

}  // namespace goat
