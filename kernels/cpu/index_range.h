#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/tensor.h"

namespace goat {

// Throws std::out_of_range, naming the first index outside [lowest, limit). Call it before a kernel uses the
// indices as addresses.
inline void require_in_range(const char* operation, const Tensor& indices, std::int64_t lowest,
                             std::int64_t limit) {
  const std::int32_t* values = indices.as<std::int32_t>();
  for (std::int64_t n = 0; n < indices.elements(); ++n)
    if (values[n] < lowest || values[n] >= limit)
      throw std::out_of_range(std::string(operation) + ": " + indices.name + "[" + std::to_string(n) +
                              "] = " + std::to_string(values[n]) + " is outside [" + std::to_string(lowest) +
                              ", " + std::to_string(limit) +
                              "); the token source must deliver ids of this model's vocabulary");
}

}  // namespace goat
