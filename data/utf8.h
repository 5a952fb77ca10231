// UTF-8: characters of text, also of text that arrives in parts or is no UTF-8 everywhere.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace goat {

struct Utf8Character {
  char32_t code = 0;      // 0 if it is invalid
  std::size_t bytes = 1;  // of an invalid one: as many as could begin a character, at least one
  bool valid = false;
};

// The character that begins at text[position], which must exist. No overlong forms, no surrogates.
Utf8Character character_at(std::string_view text, std::size_t position);

// The number of leading bytes of `text` that are UTF-8: text.size() if all are.
std::size_t valid_utf8(std::string_view text);

// UTF-8 of a code point up to U+10FFFF.
std::string utf8_of(char32_t code);

// Number of leading bytes of `text` that can be shown without cutting a UTF-8 character that later bytes may
// complete. Invalid bytes are not held back.
std::size_t complete_utf8(std::string_view text);

// What a terminal may be sent of `text`: control characters other than newline and tab, and what is no UTF-8,
// become U+FFFD, the replacement character.
std::string terminal_text(std::string_view text);

// The columns that `text` takes on a terminal: two for a wide character, none for a combining mark or a
// control character, one for each byte that is no UTF-8.
std::size_t terminal_columns(std::string_view text);

}  // namespace goat
