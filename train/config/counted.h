// counted: a number with its noun, as in "1 layer" and "2 layers".
#pragma once

#include <cstdint>
#include <string>

namespace goat {

inline std::string counted(std::int64_t count, const std::string& noun, const std::string& plural) {
  return std::to_string(count) + " " + (count == 1 ? noun : plural);
}
inline std::string counted(std::int64_t count, const std::string& noun) {
  return counted(count, noun, noun + "s");
}

}  // namespace goat
