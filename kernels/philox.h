// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random numbers as a
// pure function of (seed, stream, counter).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace goat {

using PhiloxBlock = std::array<std::uint32_t, 4>;

constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The uses of random numbers. Each has its own stream, so that more draws in one use never change another.
enum class RandomStream : std::uint32_t {
  init = 1,
  copy_mixture = 2,
  shuffle = 3,
  sample = 4,
  passkey = 10,
  niah = 11
};

// Block `block` of the sequence (seed, stream, item): counter = (block, stream, low half of item, high half
// of item), key = seed.
inline PhiloxBlock philox(std::uint64_t seed, RandomStream stream, std::uint64_t item, std::uint32_t block) {
  return philox4x32({block, static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(item),
                     static_cast<std::uint32_t>(item >> 32)},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// The random bits of AdamW's stochastic rounding: element i of the model at update t takes word i % 4 of
// block i / 4.
inline PhiloxBlock rounding_bits(std::uint64_t seed, std::int64_t block, std::int64_t update) {
  const auto halves = [](std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    return std::array{static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)};
  };
  const auto [block_low, block_high] = halves(block);
  const auto [update_low, update_high] = halves(update);
  return philox4x32({block_low, block_high, update_low, update_high},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

// Uniform in [0, 1) with 32 bits.
inline double uniform(std::uint32_t bits) { return bits * 0x1p-32; }

// Two standard normals from two words (Box-Muller).
inline std::array<double, 2> normal_pair(std::uint32_t a, std::uint32_t b) {
  const double radius = std::sqrt(-2.0 * std::log((a + 1.0) * 0x1p-32));  // argument in (0, 1]
  const double angle = 2.0 * std::numbers::pi * b * 0x1p-32;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace goat
