// What the normalisations share: the residual connection, and gradients of [C] parameters, summed over blocks
// of rows and then over the blocks in order. The blocks depend on N alone, and with them the rounding.
#pragma once

#include <cstdint>

namespace goat {

// sum = x + residual; the three may be the same memory.
void add_residual(float* sum, const float* x, const float* residual, std::int64_t width);

std::int64_t rows_per_block(std::int64_t rows);

// total[c] += the sum over the blocks of parts[block * stride + c], c < width. A thread owns columns.
void add_parts(float* total, const float* parts, std::int64_t blocks, std::int64_t stride,
               std::int64_t width);

}  // namespace goat
