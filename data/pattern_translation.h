// A tokenizer's regular expression in PCRE2's words, so that it matches exactly what it matches for Hugging
// Face's tokenizers (which use Oniguruma) and for tiktoken.
#pragma once

#include <string>

namespace goat {

// Understands characters and their escapes, classes, \s \S \d \D, \p{..} and \P{..} of general categories
// (L, Lu, ...), `.`, groups, alternatives, look-ahead, look-behind, (?i:...) of characters, and the
// quantifiers ? * + {n} {n,} {n,m} with ? or + after the first three. Throws std::invalid_argument, which
// quotes the pattern and names the place, for anything else, also for what the libraries disagree on.
//
// White space is Unicode's White_Space, which PCRE2's \s is not exactly. General categories are those of
// Unicode 16.0, also where PCRE2 knows an older one.
std::string translated_pattern(const std::string& pattern);

// A pattern that matches just `text`, in the words of translated_pattern's argument.
std::string pattern_of_text(const std::string& text);

}  // namespace goat
