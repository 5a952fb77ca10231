// Gpt2Tokenizer: GPT-2's byte-level byte-pair encoding, read from the published files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer.h"

namespace goat {

// Text is cut into pieces (words, numbers, punctuation, space); no token crosses the border of a piece. A
// piece starts as the tokens of its bytes. As long as the list of merges has a pair of neighbours, the pair
// that comes first in the list (of equal pairs the leftmost) is replaced by its merged token. Special tokens
// that are spelled out in a text are ordinary text.
class Gpt2Tokenizer final : public Tokenizer {
 public:
  // `folder` holds vocab.bpe (merges) and encoder.json (ids). Throws DataError that names the file and the
  // error in it.
  explicit Gpt2Tokenizer(const std::filesystem::path& folder);
  ~Gpt2Tokenizer() override;

  const char* name() const override { return "gpt2"; }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(bytes_.size()); }
  // Throws std::invalid_argument unless the text is UTF-8.
  std::vector<std::int32_t> encode(const std::string& text) const override;
  std::string decode(std::int32_t id) const override { return bytes_.at(static_cast<std::size_t>(id)); }
  std::optional<std::int32_t> end_of_text() const override { return end_of_text_; }

 private:
  struct Merge {
    std::int32_t rank;  // index in the list of merges
    std::int32_t id;    // id of the merged token
  };
  class Pattern;

  void read_ids(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path);
  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const;
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;

  std::vector<std::string> bytes_;                     // bytes of each id
  std::unordered_map<std::string, std::int32_t> ids_;  // id of each byte string
  std::unordered_map<std::uint64_t, Merge> merges_;    // by (left id, right id)
  std::int32_t end_of_text_ = 0;
  std::unique_ptr<const Pattern> pattern_;
};

}  // namespace goat
