// Named ranges on the time line of NVIDIA Nsight (NVTX).
#pragma once

namespace goat {

// Opens a range on this thread, and closes the one opened last. Both do nothing in a build without the CUDA
// device, and next to nothing if no tool is listening.
void push_range(const char* name);
void pop_range();

}  // namespace goat
