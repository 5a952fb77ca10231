// The memory of this machine.
#pragma once

#include <cstddef>

namespace goat {

// What the kernel could hand out without swapping, or what the control group (a container's limit) leaves, if
// that is less. In bytes.
std::size_t available_memory();

}  // namespace goat
