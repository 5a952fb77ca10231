#include "data/gpt2_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>
#include <sstream>
#include <stdexcept>

#include "data/data_error.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr const char* end_of_text_name = "<|endoftext|>";

// GPT-2's files write each byte as one printable character. A byte that is printable in Latin-1 is written as
// itself; the other bytes are written as U+0100, U+0101, ... in order.
struct ByteAlphabet {
  std::array<std::int32_t, 0x200> byte_of{};  // -1: no byte

  ByteAlphabet() {
    byte_of.fill(-1);
    std::size_t next = 0x100;
    for (std::int32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
      byte_of[printable ? static_cast<std::size_t>(byte) : next++] = byte;
    }
  }

  // The bytes that `text` (UTF-8) means. Every character of the alphabet takes one or two bytes of UTF-8.
  std::string bytes(std::string_view text) const {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      std::size_t code = static_cast<unsigned char>(text[i]);
      const std::size_t second = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
      if (code >= 0xC2 && code <= 0xC7 && second >> 6 == 2) {
        code = (code & 0x1F) << 6 | (second & 0x3F);
        ++i;
      } else if (code >= 0x80) {
        code = 0;  // longer characters mean no byte
      }
      if (byte_of[code] < 0)
        throw std::invalid_argument("\"" + std::string(text) +
                                    "\" holds a character that stands for no byte");
      result += static_cast<char>(byte_of[code]);
    }
    return result;
  }
};
const ByteAlphabet alphabet;

std::ifstream open_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!fs::is_regular_file(path) || !file)
    throw DataError(
        "--tokenizer-dir: cannot read " + path.string() +
        "; GPT-2's vocab.bpe and encoder.json are at "
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/ (the same files are called "
        "merges.txt and vocab.json elsewhere)");
  return file;
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}
}  // namespace

// Cuts text into GPT-2's pieces: English contractions; words, numbers and runs of other characters, each with
// the space before it; runs of white space, without the last character if another piece follows. The pattern
// lists the white space characters, because PCRE2's \s is not exactly Unicode's White_Space.
class Gpt2Tokenizer::Pattern {
 public:
  Pattern() {
    const std::string space =
        R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
    const std::string pattern = R"('(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^)" + space +
                                R"(\p{L}\p{N}]+|[)" + space + "]+(?![^" + space + "])|[" + space + "]+";
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    if (!code_)
      throw std::runtime_error("PCRE2 does not compile GPT-2's pattern (error " + std::to_string(error) +
                               "): was it built with Unicode?");
    match_.reset(pcre2_match_data_create(1, nullptr));
    if (!match_) throw std::bad_alloc();
  }

  // Calls piece(text) for each piece, in order. The pieces are together the whole text, because every
  // character can start one of the pattern's alternatives. Only one thread at a time may call it. Throws
  // std::invalid_argument if the text is not UTF-8.
  template <class Piece>
  void cut(std::string_view text, Piece piece) const {
    for (std::size_t done = 0; done < text.size();) {
      // The first call checks the whole text.
      const std::uint32_t checked = done == 0 ? 0 : PCRE2_NO_UTF_CHECK;
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                                    PCRE2_ANCHORED | checked, match_.get(), nullptr);
      if (found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21)
        throw std::invalid_argument("the text is no UTF-8 at byte " +
                                    std::to_string(pcre2_get_startchar(match_.get())));
      if (found < 0)
        throw std::runtime_error("PCRE2 cannot cut the text into pieces (error " + std::to_string(found) +
                                 ")");
      const std::size_t end = pcre2_get_ovector_pointer(match_.get())[1];
      piece(text.substr(done, end - done));
      done = end;
    }
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

Gpt2Tokenizer::Gpt2Tokenizer(const fs::path& folder) : pattern_(std::make_unique<const Pattern>()) {
  read_ids(folder / "encoder.json");
  read_merges(folder / "vocab.bpe");
}

Gpt2Tokenizer::~Gpt2Tokenizer() = default;

void Gpt2Tokenizer::read_ids(const fs::path& path) {
  std::ifstream file = open_file(path);
  const auto fail = [&](const std::string& what) {
    return DataError(path.string() + ": not GPT-2's table of token ids: " + what);
  };
  const nlohmann::json table = nlohmann::json::parse(file, nullptr, false);
  if (!table.is_object()) throw fail("not one JSON object (is the file cut short?)");
  bytes_.resize(table.size());
  std::vector<bool> seen(table.size());
  for (const auto& [text, id] : table.items()) {
    const bool fits =
        id.is_number_unsigned() && id.get<std::uint64_t>() < table.size() && !seen[id.get<std::size_t>()];
    if (!fits)
      throw fail("\"" + text + "\" has the id " + id.dump() + "; expected each of 0 to " +
                 std::to_string(table.size() - 1) + " once");
    const auto index = id.get<std::size_t>();
    seen[index] = true;
    try {
      bytes_[index] = alphabet.bytes(text);
    } catch (const std::invalid_argument& error) {
      throw fail(error.what());
    }
    ids_.emplace(bytes_[index], static_cast<std::int32_t>(index));
  }
  for (int byte = 0; byte < 256; ++byte)
    if (!ids_.contains(std::string(1, static_cast<char>(byte))))
      throw fail("byte " + std::to_string(byte) + " has no id");
  const auto special = ids_.try_emplace(end_of_text_name, static_cast<std::int32_t>(bytes_.size()));
  if (special.second) bytes_.emplace_back(end_of_text_name);
  end_of_text_ = special.first->second;
}

void Gpt2Tokenizer::read_merges(const fs::path& path) {
  std::ifstream file = open_file(path);
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const auto fail = [&](const std::string& what) {
      return DataError(path.string() + " line " + std::to_string(number) + ": " + what);
    };
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
      throw fail("expected two tokens with a space between them");
    try {
      const std::string left = alphabet.bytes(std::string_view(line).substr(0, space)),
                        right = alphabet.bytes(std::string_view(line).substr(space + 1));
      const auto left_id = ids_.find(left), right_id = ids_.find(right), merged_id = ids_.find(left + right);
      if (left_id == ids_.end() || right_id == ids_.end() || merged_id == ids_.end())
        throw fail("encoder.json has no id for a token of this merge; do the two files belong together?");
      merges_.try_emplace(pair_key(left_id->second, right_id->second),
                          Merge{static_cast<std::int32_t>(merges_.size()), merged_id->second});
    } catch (const std::invalid_argument& error) {
      throw fail(error.what());
    }
  }
}

const Gpt2Tokenizer::Merge* Gpt2Tokenizer::find_merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<std::int32_t> Gpt2Tokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  pattern_->cut(text, [&](std::string_view piece) { encode_piece(piece, ids); });
  return ids;
}

// Uses a queue of possible merges over a linked list of tokens: O(n log n) for a piece of n bytes.
void Gpt2Tokenizer::encode_piece(std::string_view piece, std::vector<std::int32_t>& ids) const {
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  struct Node {
    std::int32_t id;  // -1: merged into the token before it
    std::size_t previous, next;
  };
  struct Possible {
    std::int32_t rank;
    std::size_t left;  // node
    std::int32_t left_id, right_id, merged_id;
    bool operator>(const Possible& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Node> nodes(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i)
    nodes[i] = {ids_.at(std::string(1, piece[i])), i == 0 ? none : i - 1,
                i + 1 == piece.size() ? none : i + 1};

  std::priority_queue<Possible, std::vector<Possible>, std::greater<>> possible;
  const auto consider = [&](std::size_t left) {
    if (left == none || nodes[left].next == none) return;
    const std::int32_t left_id = nodes[left].id, right_id = nodes[nodes[left].next].id;
    if (const Merge* merge = find_merge(left_id, right_id))
      possible.push({merge->rank, left, left_id, right_id, merge->id});
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) consider(i);

  while (!possible.empty()) {
    const Possible merge = possible.top();
    possible.pop();
    Node& left = nodes[merge.left];
    const bool still_there =
        left.id == merge.left_id && left.next != none && nodes[left.next].id == merge.right_id;
    if (!still_there) continue;
    nodes[left.next].id = -1;
    left.id = merge.merged_id;
    left.next = nodes[left.next].next;
    if (left.next != none) nodes[left.next].previous = merge.left;
    consider(left.previous);
    consider(merge.left);
  }
  for (const Node& node : nodes)
    if (node.id >= 0) ids.push_back(node.id);
}

}  // namespace goat
