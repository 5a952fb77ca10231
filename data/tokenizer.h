// Tokenizer: converts text to token ids and back. Bytes, single characters and plain ids are here, byte-pair
// encodings are in data/bpe_tokenizer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace goat {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual const char* name() const = 0;
  virtual std::int64_t vocabulary() const = 0;  // the valid ids are 0 .. vocabulary() - 1
  // Throws std::invalid_argument for text that it cannot read.
  virtual std::vector<std::int32_t> encode(const std::string& text) const = 0;
  // The bytes that token `id` adds to the output. The bytes of one character may come from several tokens.
  virtual std::string decode(std::int32_t id) const = 0;
  // The token between documents, if there is one.
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
  // The text that stands for an empty prompt: a model needs a first token.
  virtual std::string empty_prompt() const { return "\n"; }
};

// A token is a byte.
class ByteTokenizer final : public Tokenizer {
 public:
  const char* name() const override { return "bytes"; }
  std::int64_t vocabulary() const override { return 256; }
  std::vector<std::int32_t> encode(const std::string& text) const override;
  std::string decode(std::int32_t id) const override { return std::string(1, static_cast<char>(id)); }
};

// For tokens that do not stand for text: decimal ids, separated by white space. decode writes a space
// after each id.
class IdTokenizer final : public Tokenizer {
 public:
  explicit IdTokenizer(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  const char* name() const override { return "ids"; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::vector<std::int32_t> encode(const std::string& text) const override;
  std::string decode(std::int32_t id) const override { return std::to_string(id) + " "; }
  std::string empty_prompt() const override { return "0"; }

 private:
  std::int64_t vocabulary_;
};

// What an AlphabetTokenizer reads and writes.
struct Alphabet {
  std::string name;                 // of the tokenizer
  std::vector<std::string> tokens;  // token i: a character, or a name such as <bos>
  std::string empty_prompt;         // text of the first token where there is no prompt
  bool folds = false;               // a lower-case ASCII letter means the capital, and white space is skipped
};

// The tokenizer "characters" of built-in tasks: <pad>, <bos>, <eos>, then the characters of an ASCII text.
Alphabet task_characters(std::string_view characters);

// The bases of a genome: A C G T, and N for an unknown one. White space (FASTA's line ends) is skipped.
const Alphabet& dna_alphabet();

// A token is a character of a small alphabet. Names such as <bos> are written, but not read: spelled out in a
// text they are characters as all others.
class AlphabetTokenizer final : public Tokenizer {
 public:
  explicit AlphabetTokenizer(Alphabet alphabet);
  const char* name() const override { return alphabet_.name.c_str(); }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(alphabet_.tokens.size()); }
  std::vector<std::int32_t> encode(const std::string& text) const override;
  std::string decode(std::int32_t id) const override {
    return alphabet_.tokens.at(static_cast<std::size_t>(id));
  }
  std::string empty_prompt() const override { return alphabet_.empty_prompt; }

 private:
  Alphabet alphabet_;
  std::unordered_map<std::string, std::int32_t> ids_;  // of characters
};

}  // namespace goat
