// The bits of bf16 numbers on the host: bf16 is the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

namespace goat {

// Rounded to nearest, ties to even. A NaN stays one.
inline std::uint16_t bf16_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // keeps a bit of the mantissa set
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rounded up or down by the upper 16 bits of `random`: away from zero with probability (distance to the lower
// magnitude) / (distance of the two). Numbers that would round to infinity, and what is not finite, are
// rounded to nearest. The same as AdamW's stochastic rounding on a GPU.
inline std::uint16_t bf16_bits(float x, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) >= 0x7f7f0000u) return bf16_bits(x);
  return static_cast<std::uint16_t>((bits + (random >> 16)) >> 16);
}

inline float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace goat
