#include "data/utf8.h"

#include <utf8proc.h>

#include <cstdint>

namespace goat {

namespace {
// Length in bytes of the character that begins with `lead`; 0 for a byte that cannot begin a character.
std::size_t character_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Whether `byte` can be byte number `index` >= 1 of a character that begins with `lead`. The second byte may
// not make an overlong form, a surrogate or a code point above U+10FFFF.
bool continues(unsigned char lead, std::size_t index, unsigned char byte) {
  if ((byte & 0xC0) != 0x80) return false;
  if (index > 1) return true;
  return !((lead == 0xE0 && byte < 0xA0) || (lead == 0xED && byte > 0x9F) || (lead == 0xF0 && byte < 0x90) ||
           (lead == 0xF4 && byte > 0x8F));
}

bool is_control(char32_t code) { return code < 0x20 || (code >= 0x7F && code < 0xA0); }
}  // namespace

Utf8Character character_at(std::string_view text, std::size_t position) {
  const auto lead = static_cast<unsigned char>(text[position]);
  const std::size_t length = character_length(lead);
  if (length <= 1) return {.code = length == 1 ? lead : 0u, .bytes = 1, .valid = length == 1};
  char32_t code = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte =
        position + i < text.size() ? static_cast<unsigned char>(text[position + i]) : std::uint8_t{0};
    if (!continues(lead, i, byte)) return {.code = 0, .bytes = i, .valid = false};
    code = code << 6 | (byte & 0x3Fu);
  }
  return {.code = code, .bytes = length, .valid = true};
}

std::size_t valid_utf8(std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const Utf8Character character = character_at(text, done);
    if (!character.valid) break;
    done += character.bytes;
  }
  return done;
}

std::string utf8_of(char32_t code) {
  const auto byte = [](char32_t value) { return static_cast<char>(static_cast<unsigned char>(value)); };
  const auto low = [&](int shift) { return byte(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), low(0)};
  if (code < 0x10000) return {byte(0xE0 | code >> 12), low(6), low(0)};
  return {byte(0xF0 | code >> 18), low(12), low(6), low(0)};
}

std::size_t complete_utf8(std::string_view text) {
  // Where the last character may begin: a cut one has at most three bytes.
  for (std::size_t start = text.size() < 3 ? 0 : text.size() - 3; start < text.size(); ++start) {
    const Utf8Character last = character_at(text, start);
    if (!last.valid && start + last.bytes == text.size() &&
        character_length(static_cast<unsigned char>(text[start])) > last.bytes)
      return start;
  }
  return text.size();
}

std::string terminal_text(std::string_view text) {
  std::string shown;
  for (std::size_t done = 0; done < text.size();) {
    const Utf8Character character = character_at(text, done);
    const bool passes =
        character.code == '\n' || character.code == '\t' || (character.valid && !is_control(character.code));
    shown += passes ? text.substr(done, character.bytes) : std::string_view("\uFFFD");
    done += character.bytes;
  }
  return shown;
}

std::size_t terminal_columns(std::string_view text) {
  std::size_t columns = 0;
  for (std::size_t done = 0; done < text.size();) {
    const Utf8Character character = character_at(text, done);
    const int width = utf8proc_charwidth(static_cast<utf8proc_int32_t>(character.code));
    columns += character.valid ? static_cast<std::size_t>(width) : character.bytes;
    done += character.bytes;
  }
  return columns;
}

}  // namespace goat
