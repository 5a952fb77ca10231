// bf16 elements on the CPU, for the operations that take them there. Arithmetic uses fp32.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/tensor.h"

namespace goat {

struct Bf16 {
  std::uint16_t bits;  // the upper half of the float's bits
};

SIMD_INLINE float to_float(float value) { return value; }
SIMD_INLINE float to_float(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

SIMD_INLINE void store(float& to, float value) { to = value; }
// Rounds to nearest, ties to even. NaN stays NaN.
SIMD_INLINE void store(Bf16& to, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = value != value ? bits | 0x400000u : bits + 0x7FFFu + ((bits >> 16) & 1u);
  to.bits = static_cast<std::uint16_t>(rounded >> 16);
}

// Calls body(elements) with the elements of an f32 or bf16 tensor.
template <class Body>
void with_elements(const Tensor& tensor, Body body) {
  if (tensor.dtype == DType::bf16)
    body(static_cast<Bf16*>(tensor.data));
  else
    body(tensor.as<float>());
}

}  // namespace goat
