#include "data/tokenizer.h"

#include <charconv>
#include <sstream>
#include <stdexcept>

namespace goat {

std::vector<std::int32_t> ByteTokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::vector<std::int32_t> IdTokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || end != word.data() + word.size() || id < 0 || id >= vocabulary_)
      throw std::invalid_argument("\"" + word + "\" is no token id; expected integers from 0 to " +
                                  std::to_string(vocabulary_ - 1) + ", separated by spaces");
    ids.push_back(id);
  }
  return ids;
}

namespace {
bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Length in bytes of the character that begins with `lead`; 1 for a byte that cannot begin a character.
std::size_t character_length(unsigned char lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 1;
}

// Whether the second byte would make an overlong form, a surrogate or a code point above U+10FFFF.
bool impossible_second(unsigned char lead, unsigned char second) {
  return (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
         (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
}
}  // namespace

std::size_t complete_utf8(const std::string& text) {
  // One past the last byte that is not a continuation byte. At most three continuation bytes are skipped.
  std::size_t start = text.size();
  while (start > 0 && text.size() - start < 3 && is_continuation(static_cast<unsigned char>(text[start - 1])))
    --start;
  if (start == 0) return text.size();
  --start;
  const auto lead = static_cast<unsigned char>(text[start]);
  if (start + character_length(lead) <= text.size()) return text.size();
  if (start + 1 < text.size() && impossible_second(lead, static_cast<unsigned char>(text[start + 1])))
    return text.size();
  return start;
}

}  // namespace goat
