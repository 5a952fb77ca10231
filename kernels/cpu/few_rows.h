// Matrix products of few rows: they take as long as reading the weight, which they do once.
#pragma once

#include "kernels/operations.h"

namespace goat {

// Whether few_rows() takes the operation: 1 to 8 rows in fp32. dev/results/decode_cpu.md has measurements.
bool has_few_rows(const LinearForward& op);

// Computes the operation. The bits of a row of out depend neither on the other rows nor on the number of
// threads.
void few_rows(const LinearForward& op);

}  // namespace goat
