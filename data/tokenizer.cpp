#include "data/tokenizer.h"

#include <charconv>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "data/utf8.h"

namespace goat {

namespace {
// The characters that have an id, in the order of the ids.
std::string listed(const std::unordered_map<std::string, std::int32_t>& ids) {
  std::map<std::int32_t, std::string> ordered;
  for (const auto& [character, id] : ids) ordered.emplace(id, character);
  std::string list;
  for (const auto& [id, character] : ordered) list += character;
  return list;
}
}  // namespace

std::vector<std::int32_t> ByteTokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::vector<std::int32_t> IdTokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || end != word.data() + word.size() || id < 0 || id >= vocabulary_)
      throw std::invalid_argument("\"" + terminal_text(word) +
                                  "\" is no token id; expected integers from 0 to " +
                                  std::to_string(vocabulary_ - 1) + ", separated by spaces");
    ids.push_back(id);
  }
  return ids;
}

const Alphabet& dna_alphabet() {
  static const Alphabet alphabet{
      .name = "dna", .tokens = {"A", "C", "G", "N", "T"}, .empty_prompt = "N", .folds = true};
  return alphabet;
}

Alphabet task_characters(std::string_view characters) {
  Alphabet alphabet{
      .name = "characters", .tokens = {"<pad>", "<bos>", "<eos>"}, .empty_prompt = " ", .folds = false};
  for (const char c : characters) alphabet.tokens.emplace_back(1, c);
  return alphabet;
}

AlphabetTokenizer::AlphabetTokenizer(Alphabet alphabet) : alphabet_(std::move(alphabet)) {
  for (std::size_t i = 0; i < alphabet_.tokens.size(); ++i) {
    const std::string& token = alphabet_.tokens[i];
    if (!token.empty() && character_at(token, 0).bytes == token.size())
      ids_.emplace(token, static_cast<std::int32_t>(i));
  }
}

std::vector<std::int32_t> AlphabetTokenizer::encode(const std::string& text) const {
  std::vector<std::int32_t> ids;
  for (std::size_t done = 0; done < text.size();) {
    std::string character = text.substr(done, character_at(text, done).bytes);
    const char c = character.front();
    if (!alphabet_.folds || !(c == ' ' || (c >= '\t' && c <= '\r'))) {
      if (alphabet_.folds && c >= 'a' && c <= 'z') character.front() = static_cast<char>(c - 'a' + 'A');
      const auto found = ids_.find(character);
      if (found == ids_.end())
        throw std::invalid_argument("\"" + terminal_text(text.substr(done, character.size())) +
                                    "\" at byte " + std::to_string(done) + " is no token of the tokenizer " +
                                    alphabet_.name + "; expected " + listed(ids_));
      ids.push_back(found->second);
    }
    done += character.size();
  }
  return ids;
}

}  // namespace goat
