#include "data/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "data/unicode_additions.h"
#include "data/utf8.h"

namespace goat {

namespace {
struct Range {
  char32_t first, last;
};
// What Unicode 10.0 to 15.0 added that has a combining class, or composes with the character before it.
constexpr Range newer_marks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

// Whether the character has no part in the normal form of those around it.
bool stays(char32_t code) {
  const auto holds = [code](const auto& range) { return range.first <= code && code <= range.last; };
  return code >= newer_marks[0].first &&
         (std::ranges::any_of(newer_marks, holds) || std::ranges::any_of(unicode_additions(), holds));
}

std::string composed(std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t bytes = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
      &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> held(result, &std::free);
  if (bytes < 0) throw std::runtime_error(std::string("utf8proc: ") + utf8proc_errmsg(bytes));
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(bytes)};
}
}  // namespace

std::string to_nfc(std::string_view text) {
  std::string result;
  std::size_t start = 0;  // of what is not in the result yet
  for (std::size_t done = 0; done < text.size();) {
    const Utf8Character character = character_at(text, done);
    if (stays(character.code)) {
      result += composed(text.substr(start, done - start));
      result += text.substr(done, character.bytes);
      start = done + character.bytes;
    }
    done += character.bytes;
  }
  return result + composed(text.substr(start));
}

}  // namespace goat
