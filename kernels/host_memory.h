// Memory available on this machine.
#pragma once

#include <cstddef>

namespace goat {

// Bytes that the kernel can provide without swapping, or that the control group (the limit of a container)
// leaves, if that is less.
std::size_t available_memory();

}  // namespace goat
