// Fourier features of a position, shared by the relative prior (prior.cpp) and the sink features (sink.cpp).
#pragma once

#include <cmath>
#include <cstdint>

namespace goat {

// The coordinate of an A-dimensional position that mode r uses. Of `modes` modes, the first modes -
// floor(modes/2) use y and the others x.
inline std::int64_t axis_of_mode(std::int64_t r, std::int64_t modes, std::int64_t axes) {
  return axes == 2 && r >= modes - modes / 2 ? 1 : 0;
}

struct FourierPair {
  float cosine;
  float sine;
};

// (cos, sin) of frequency * position, or (0, 0) for a negative position. The angle is a double: a float would
// lose 8 bits at position 32767.
inline FourierPair fourier_pair(double frequency, std::int32_t position) {
  if (position < 0) return {0, 0};
  const double angle = frequency * position;
  return {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
}

}  // namespace goat
