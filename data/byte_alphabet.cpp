#include "data/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "data/utf8.h"

namespace goat {

namespace {
std::array<std::int32_t, 0x200> bytes_of_code_points() {
  std::array<std::int32_t, 0x200> byte_of{};
  byte_of.fill(-1);
  std::size_t next = 0x100;
  for (std::int32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    byte_of[printable ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return byte_of;
}
}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view text) {
  static const std::array<std::int32_t, 0x200> byte_of = bytes_of_code_points();
  std::string bytes;
  for (std::size_t done = 0; done < text.size();) {
    const Utf8Character character = character_at(text, done);
    if (!character.valid || character.code >= byte_of.size() || byte_of[character.code] < 0)
      return std::nullopt;
    bytes += static_cast<char>(byte_of[character.code]);
    done += character.bytes;
  }
  return bytes;
}

}  // namespace goat
