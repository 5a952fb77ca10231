// Gpt2Tokenizer: GPT-2's byte-level byte-pair encoding, read from its published files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer.h"

namespace goat {

// Text is cut into pieces (words, numbers, punctuation, space) that no token crosses; a piece starts as the
// tokens of its bytes, and as long as two neighbours have a merge, the one that comes first in the list of
// merges (of equal ones, the leftmost) replaces them by its token. Special tokens spelled out in a text are
// ordinary text.
class Gpt2Tokenizer final : public Tokenizer {
 public:
  // `folder` holds vocab.bpe (merges) and encoder.json (ids). Throws DataError that names the file and what
  // is wrong with it.
  explicit Gpt2Tokenizer(const std::filesystem::path& folder);
  ~Gpt2Tokenizer() override;

  const char* name() const override { return "gpt2"; }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(bytes_.size()); }
  std::vector<std::int32_t> encode(const std::string& text) const override;  // of UTF-8 only
  std::string decode(std::int32_t id) const override { return bytes_.at(static_cast<std::size_t>(id)); }
  std::optional<std::int32_t> end_of_text() const override { return end_of_text_; }

 private:
  struct Merge {
    std::int32_t rank;  // the place in the list
    std::int32_t id;    // of the token it gives
  };
  class Pattern;

  void read_ids(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path);
  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const;
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;

  std::vector<std::string> bytes_;                     // of each id
  std::unordered_map<std::string, std::int32_t> ids_;  // of bytes
  std::unordered_map<std::uint64_t, Merge> merges_;    // of (left id, right id)
  std::int32_t end_of_text_ = 0;
  std::unique_ptr<const Pattern> pattern_;
};

}  // namespace goat
