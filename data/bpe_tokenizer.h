// BpeTokenizer: byte-level byte-pair encodings: GPT-2's, and those of a tokenizer.json of Hugging Face's
// tokenizers (Llama 3, Qwen, GPT-4o, DeepSeek, ...).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_pairs.h"
#include "data/text_pattern.h"
#include "data/tokenizer.h"

namespace goat {

// A step that cuts text, or each piece that the step before it made.
struct CutStep {
  std::shared_ptr<const TextPattern> pattern;  // null: cuts nothing
  bool keeps_gaps = true;                      // what lies between two matches is a piece too
  bool prefix_space = false;                   // before it cuts, puts a space where the text begins with none
};

// A token that lies outside the merges. Spelled out in a text, special ones are ordinary text, the others
// become the token.
struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;  // is looked for after the text was brought to NFC
};

struct BpeParts {
  std::string name;
  std::vector<std::string> texts;  // bytes of each id; empty where an id is no token
  BytePairs pairs;
  std::vector<AddedToken> added;
  std::vector<CutStep> steps;  // no token crosses the border of a piece
  bool nfc = false;            // text is brought to Unicode's normal form C first
  std::optional<std::int32_t> end_of_text;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts);

  const char* name() const override { return parts_.name.c_str(); }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(parts_.texts.size()); }
  // Throws std::invalid_argument unless the text is UTF-8.
  std::vector<std::int32_t> encode(const std::string& text) const override;
  std::string decode(std::int32_t id) const override { return parts_.texts.at(static_cast<std::size_t>(id)); }
  std::optional<std::int32_t> end_of_text() const override { return parts_.end_of_text; }

 private:
  using Ids = std::vector<std::int32_t>;
  void encode_plain(std::string_view text, Ids& ids) const;
  void encode_piece(std::string_view piece, std::size_t step, Ids& ids) const;

  BpeParts parts_;
  // Those to look for before and after NFC, each list with the longest first.
  std::vector<AddedToken> before_nfc_, after_nfc_;
};

// GPT-2's encoding, from a folder with OpenAI's vocab.bpe (merges) and encoder.json (ids). Throws DataError
// that names the file and the error in it.
BpeTokenizer gpt2_tokenizer(const std::filesystem::path& folder);
// The same from the contents of the two files. `folder` is for messages.
BpeTokenizer gpt2_tokenizer(const std::filesystem::path& folder, const std::string& ids,
                            const std::string& merges);

// The encoding of a tokenizer.json, which is the name of the tokenizer too. Throws DataError that names the
// file and what in it is wrong, or is not supported.
BpeTokenizer json_tokenizer(const std::filesystem::path& file);
// The same from the contents of the file. `file` is for messages.
BpeTokenizer json_tokenizer(const std::filesystem::path& file, const std::string& contents);

}  // namespace goat
