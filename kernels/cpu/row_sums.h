// Shared by the normalisations: the residual connection, and gradients of [C] parameters. These are summed
// over blocks of rows, then over the blocks in order. The blocks, and so the rounding, depend only on N.
#pragma once

#include <cstdint>

namespace goat {

// sum = x + residual. The three may be the same memory.
void add_residual(float* sum, const float* x, const float* residual, std::int64_t width);

std::int64_t rows_per_block(std::int64_t rows);
std::int64_t row_blocks(std::int64_t rows);

// total[c] += sum over the blocks of parts[block * stride + c], c < width. A thread owns columns.
void add_parts(float* total, const float* parts, std::int64_t blocks, std::int64_t stride,
               std::int64_t width);

}  // namespace goat
