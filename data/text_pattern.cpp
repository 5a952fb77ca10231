#include "data/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "data/pattern_translation.h"

namespace goat {

const char* const gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct TextPattern::Compiled {
  struct Free {
    void operator()(pcre2_code* freed) const { pcre2_code_free(freed); }
    void operator()(pcre2_match_data* freed) const { pcre2_match_data_free(freed); }
    void operator()(pcre2_match_context* freed) const { pcre2_match_context_free(freed); }
  };
  std::unique_ptr<pcre2_code, Free> code;
  std::unique_ptr<pcre2_match_data, Free> match;
  std::unique_ptr<pcre2_match_context, Free> limits;
};

TextPattern::TextPattern(const std::string& pattern) {
  const auto refused = [&](const std::string& why) {
    return std::invalid_argument("the pattern \"" + pattern + "\" " + why);
  };
  const std::string translated = translated_pattern(pattern);
  const auto compiled = std::make_shared<Compiled>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &offset,
                                     nullptr));
  if (!compiled->code) {
    PCRE2_UCHAR text[256] = {};
    pcre2_get_error_message(error, text, sizeof text);
    throw refused(std::string("is not understood by PCRE2: ") + reinterpret_cast<const char*>(text));
  }
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) throw refused("can match the empty string, which cuts no piece");
  compiled->match.reset(pcre2_match_data_create(1, nullptr));
  compiled->limits.reset(pcre2_match_context_create(nullptr));
  if (!compiled->match || !compiled->limits) throw std::bad_alloc();
  constexpr std::uint32_t most_kibibytes = std::uint32_t{1} << 20;
  pcre2_set_heap_limit(compiled->limits.get(), most_kibibytes);
  compiled_ = compiled;
}

void TextPattern::cut(std::string_view text,
                      const std::function<void(std::string_view piece, bool matched)>& piece) const {
  // A long run takes a few steps for each of its characters.
  const std::size_t most_steps = 1'000'000 + 16 * text.size();
  pcre2_set_match_limit(compiled_->limits.get(), static_cast<std::uint32_t>(std::min<std::size_t>(
                                                     most_steps, std::numeric_limits<std::uint32_t>::max())));
  for (std::size_t done = 0; done < text.size();) {
    const int found =
        pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                    PCRE2_NO_UTF_CHECK, compiled_->match.get(), compiled_->limits.get());
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
      throw std::runtime_error("PCRE2 cannot cut the text into pieces (error " + std::to_string(found) +
                               " from byte " + std::to_string(done) +
                               " on): the tokenizer's pattern takes "
                               "too many steps on it");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(compiled_->match.get());
    const std::size_t start = found < 0 ? text.size() : range[0], end = found < 0 ? text.size() : range[1];
    if (start > done) piece(text.substr(done, start - done), false);
    if (end > start) piece(text.substr(start, end - start), true);
    done = std::max(end, start + (end == start ? 1 : 0));
  }
}

}  // namespace goat
