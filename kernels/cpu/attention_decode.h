// Attention of few queries to many keys, as in generation: it takes as long as reading k and v, which it does
// once.
#pragma once

#include <cstddef>

#include "kernels/operations.h"

namespace goat::attention {

// Whether decode() takes the operation: 1 to 4 queries in fp32, and at least one key. Tiles of queries would
// compute more rows than there are. dev/results/decode_cpu.md has measurements.
bool decodes(const AttentionForward& op);

// The bytes of its workspace, which grow with T_k and with the number of OpenMP threads.
std::size_t decode_workspace(const AttentionForward& op);

// Computes the operation. The bits of out and lse do not depend on the number of threads.
void decode(const AttentionForward& op, void* workspace);

}  // namespace goat::attention
