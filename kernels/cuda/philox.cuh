// Philox4x32-10 (Salmon et al., SC 2011) for kernels; kernels/philox.h is the version for the host.
#pragma once

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

// words <- the 128 random bits of (key, counter). On entry `words` is the counter.
__device__ __forceinline__ void philox4x32(std::uint32_t (&words)[4], std::uint64_t key) {
  std::uint32_t key_low = static_cast<std::uint32_t>(key), key_high = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * words[0],
                        p1 = std::uint64_t{0xCD9E8D57u} * words[2];
    words[0] = static_cast<std::uint32_t>(p1 >> 32) ^ words[1] ^ key_low;
    words[1] = static_cast<std::uint32_t>(p1);
    words[2] = static_cast<std::uint32_t>(p0 >> 32) ^ words[3] ^ key_high;
    words[3] = static_cast<std::uint32_t>(p0);
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
}

}  // namespace goat::GOAT_TARGET
