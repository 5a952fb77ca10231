// The characters that Unicode 15.0 to 16.0 added to Unicode 14.0, by general category: PCRE2 10.40 to 10.42
// (Debian 12) knows Unicode 14.0, the libraries that tokenizers were made with know 16.0.
#pragma once

#include <span>
#include <string_view>

namespace goat {

struct AddedCharacters {
  char32_t first, last;
  std::string_view category;  // as "Lu"
};
std::span<const AddedCharacters> unicode_additions();

}  // namespace goat
