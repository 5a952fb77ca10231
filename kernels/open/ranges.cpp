#include "kernels/open/ranges.h"

#ifdef GOAT_HAS_CUDA
#include <nvtx3/nvToolsExt.h>

namespace goat {
void push_range(const char* name) { nvtxRangePushA(name); }
void pop_range() { nvtxRangePop(); }
}  // namespace goat
#else
namespace goat {
void push_range(const char*) {}
void pop_range() {}
}  // namespace goat
#endif
