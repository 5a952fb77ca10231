// counted: a number with its noun, as in "1 layer" and "2 layers".
#pragma once

#include <cstdint>
#include <string>

namespace goat {

inline std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace goat
