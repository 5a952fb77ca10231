// Matrix products of f32 matrices whose elements are rounded to bf16 first (to nearest, ties to even). Sums
// are fp32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace goat {

// out[m, n] = left[m, k] right[k, n], row-major. A transposed factor lies in memory as its transpose.
struct ProductShape {
  std::int64_t m, n, k;
  bool left_transposed, right_transposed;
};

// Two forms of the same product. They differ in the order of the sums, and the processor's instructions take
// numbers below 2^-126 as zeros.
enum class Bf16Form : std::uint8_t {
  library,  // oneDNN's bf16 product, on processors with AMX; with AVX512_BF16 alone it is slower than sgemm
  rounded   // fp32 copies of the rounded elements, and sgemm
};
// The form for this processor, as far as ONEDNN_MAX_CPU_ISA lets oneDNN use it.
Bf16Form bf16_form();

std::size_t bf16_workspace(Bf16Form form, const ProductShape& shape);  // bytes

// out = (accumulate ? out : 0) + left right. `workspace`: bf16_workspace() bytes. Throws std::runtime_error
// if the library fails.
void multiply_bf16(Bf16Form form, const ProductShape& shape, float* out, const float* left,
                   const float* right, bool accumulate, void* workspace);

}  // namespace goat
