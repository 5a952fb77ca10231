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

inline float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace goat
