// BytePairs: the merges of a byte-level byte-pair encoding, and the tokens that they make of a piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace goat {

class BytePairs {
 public:
  BytePairs() { byte_ids_.fill(-1); }

  // A token that the merges can make: its bytes. A token of one byte starts the encoding.
  void add_token(const std::string& bytes, std::int32_t id);
  std::int32_t find_token(const std::string& bytes) const;  // -1 if there is none

  // Adds a merge after those before it. Where a pair comes twice, the first or the last entry counts.
  enum class Twice { first, last };
  void add_merge(std::int32_t left, std::int32_t right, std::int32_t merged, Twice twice);

  // Appends the tokens of a piece. The piece starts as the tokens of its bytes. As long as the list of merges
  // has a pair of neighbours, the pair that comes first in the list (of equal pairs the leftmost) is replaced
  // by its merged token. Takes O(n log n) for n bytes. Throws std::invalid_argument for a byte without a
  // token.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;

  // Whether a piece that is a token as a whole becomes that token, whatever the merges say.
  bool whole_first = false;

 private:
  struct Merge {
    std::int32_t rank;  // index in the list of merges
    std::int32_t id;    // id of the merged token
  };
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  std::int32_t byte_token(char byte) const;

  std::array<std::int32_t, 256> byte_ids_;             // -1: none
  std::unordered_map<std::string, std::int32_t> ids_;  // id of each byte string
  std::unordered_map<std::uint64_t, Merge> merges_;    // by (left id, right id)
  std::int32_t next_rank_ = 0;
};

}  // namespace goat
