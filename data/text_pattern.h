// TextPattern: a regular expression of a tokenizer, which cuts text into pieces.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace goat {

class TextPattern {
 public:
  // `pattern` is written as for Oniguruma, the library of Hugging Face's tokenizers; see
  // data/pattern_translation.h for what is understood of it. Throws std::invalid_argument for anything else,
  // and for a pattern that matches the empty string.
  explicit TextPattern(const std::string& pattern);

  // Calls piece(text, matched) for each match of the pattern, and for what lies between two matches, in
  // order. `text` must be UTF-8. Only one thread at a time may call it. Throws std::runtime_error if the
  // text takes too many steps.
  void cut(std::string_view text,
           const std::function<void(std::string_view piece, bool matched)>& piece) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

// GPT-2's pieces: English contractions; words, numbers and runs of other characters, each with the space
// before it; runs of white space, without the last character if another piece follows.
extern const char* const gpt2_pattern;

}  // namespace goat
