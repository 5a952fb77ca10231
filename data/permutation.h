// Permutation: a random order of [0, n) that is computed, not stored. Position i of any epoch is computed
// without the positions before it.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/philox.h"

namespace goat {

// A Feistel network over the smallest power of two that holds n (Black & Rogaway, "Ciphers with arbitrary
// finite domains", CT-RSA 2002). The index is split into two halves. Each round computes the xor of one half
// with a Philox function of the other half. This can be undone, so that it is a bijection. A result of n or
// more goes through the network again until it is below n; this takes less than two tries on average.
class Permutation {
 public:
  // `epoch` selects one of the seed's permutations. n must be positive.
  Permutation(std::uint64_t n, std::uint64_t seed, std::uint64_t epoch)
      : n_(n),
        low_bits_(static_cast<int>(std::bit_width(n - 1)) / 2),
        high_bits_(static_cast<int>(std::bit_width(n - 1)) - low_bits_) {
    const PhiloxBlock words = philox(seed, RandomStream::shuffle, epoch, 0);
    key_ = {words[0], words[1]};
  }

  // The image of `index`, index < n.
  std::uint64_t operator()(std::uint64_t index) const {
    do index = encrypt(index);
    while (index >= n_);
    return index;
  }

 private:
  static constexpr std::uint32_t rounds = 8;

  static constexpr std::uint64_t mask(int bits) { return (std::uint64_t{1} << bits) - 1; }

  std::uint64_t encrypt(std::uint64_t index) const {
    std::uint64_t low = index & mask(low_bits_);
    std::uint64_t high = index >> low_bits_;
    for (std::uint32_t round = 0; round < rounds; round += 2) {
      high ^= round_function(round, low) & mask(high_bits_);
      low ^= round_function(round + 1, high) & mask(low_bits_);
    }
    return high << low_bits_ | low;
  }

  // The cast loses nothing, because a half has at most 32 bits.
  std::uint32_t round_function(std::uint32_t round, std::uint64_t half) const {
    return philox4x32({static_cast<std::uint32_t>(half), round, 0, 0}, key_)[0];
  }

  std::uint64_t n_;
  int low_bits_;
  int high_bits_;
  std::array<std::uint32_t, 2> key_{};
};

}  // namespace goat
