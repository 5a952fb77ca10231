// Tokenizer: converts text to token ids and back. Bytes and plain ids are here, GPT-2's
// is in data/gpt2_tokenizer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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

 private:
  std::int64_t vocabulary_;
};

// Number of leading bytes of `text` that can be shown without cutting a UTF-8 character that later bytes may
// complete. Invalid bytes are not held back.
std::size_t complete_utf8(const std::string& text);

}  // namespace goat
