// Reads the tokenizer.json of Hugging Face's tokenizers, as far as it describes a byte-level BPE.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "data/bpe_tokenizer.h"
#include "data/byte_alphabet.h"
#include "data/data_error.h"
#include "data/parsed_json.h"
#include "data/pattern_translation.h"
#include "data/utf8.h"

namespace goat {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {
constexpr std::int64_t most_tokens = std::int64_t{1} << 22;

std::string quoted(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr std::size_t most = 80;
  return text.size() <= most ? text : text.substr(0, complete_utf8(text.substr(0, most))) + "...";
}

class Reader {
 public:
  explicit Reader(const fs::path& file) : file_(file) {}

  BpeTokenizer read(const std::string& contents) {
    const Json json = parsed_json(contents);
    if (!json.is_object()) throw wrong("is no JSON object (is the file cut short?)");
    parts_.name = "tokenizer.json";
    read_normalizer(member(json, "normalizer"), 0);
    read_pre_tokenizer(member(json, "pre_tokenizer"), 0);
    if (!byte_level_)
      throw unsupported("pre_tokenizer", "has no ByteLevel: its tokens are no bytes (SentencePiece's, ...)");
    read_model(member(json, "model"));
    read_added(member(json, "added_tokens"));
    parts_.end_of_text = end_of_text();
    return BpeTokenizer(std::move(parts_));
  }

 private:
  DataError wrong(const std::string& what) const {
    return DataError(terminal_text(file_.string() + " " + what));
  }
  DataError unsupported(const std::string& where, const std::string& what) const {
    return DataError(terminal_text(
        file_.string() + ": " + where + " " + what +
        "; only byte-level BPE is read here. --tokenizer ids takes and shows token ids instead"));
  }
  // Null if there is none.
  static const Json& member(const Json& json, const char* key) {
    static const Json none;
    const auto found = json.find(key);
    return found == json.end() ? none : *found;
  }
  bool flag(const Json& json, const char* key, bool otherwise) const {
    const Json& value = member(json, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean())
      throw wrong(std::string("has the ") + key + " " + quoted(value) + "; expected true or false");
    return value.get<bool>();
  }
  static std::string type_of(const Json& json) {
    const Json& type = json.is_object() ? member(json, "type") : json;
    return type.is_string() ? type.get<std::string>() : "";
  }
  // Calls each(item, depth) for the steps of a "Sequence".
  template <class Each>
  void sequence(const std::string& where, const Json& items, int depth, const Each& each) {
    constexpr int deepest = 8;
    if (!items.is_array() || depth >= deepest)
      throw unsupported(where, "holds a Sequence without a plain list");
    for (const Json& item : items) each(item, depth + 1);
  }

  void read_normalizer(const Json& json, int depth) {
    if (json.is_null()) return;
    const std::string type = type_of(json);
    if (type == "Sequence")
      sequence("normalizer", member(json, "normalizers"), depth,
               [&](const Json& item, int inner) { read_normalizer(item, inner); });
    else if (type == "NFC")
      parts_.nfc = true;
    else
      throw unsupported("normalizer", quoted(json) + " is not supported (NFC is)");
  }

  void read_pre_tokenizer(const Json& json, int depth) {
    const std::string type = type_of(json);
    if (json.is_null()) return;
    if (byte_level_) throw unsupported("pre_tokenizer", "goes on after ByteLevel");
    if (type == "Sequence")
      sequence("pre_tokenizer", member(json, "pretokenizers"), depth,
               [&](const Json& item, int inner) { read_pre_tokenizer(item, inner); });
    else if (type == "ByteLevel")
      read_byte_level(json);
    else if (type == "Split")
      read_split(json);
    else if (type == "Digits")
      add_pattern(flag(json, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", true);
    else
      throw unsupported("pre_tokenizer", quoted(json) + " is not supported (Split, Digits, ByteLevel are)");
  }
  void read_byte_level(const Json& json) {
    byte_level_ = true;
    CutStep step;
    step.prefix_space = flag(json, "add_prefix_space", true);
    if (flag(json, "use_regex", true)) step.pattern = std::make_shared<const TextPattern>(gpt2_pattern);
    parts_.steps.push_back(step);
  }
  void read_split(const Json& json) {
    const Json& pattern = member(json, "pattern");
    const Json& regex = pattern.is_object() ? member(pattern, "Regex") : pattern;
    const Json& text = pattern.is_object() ? member(pattern, "String") : pattern;
    const bool inverted = flag(json, "invert", false);
    const std::string behavior = type_of(member(json, "behavior"));
    if (!(behavior == "Isolated" || (behavior == "Removed" && inverted)))
      throw unsupported(
          "pre_tokenizer",
          quoted(json) + " is not supported (the behavior Isolated is, or Removed with invert)");
    if (pattern.is_object() && regex.is_string())
      add_pattern(regex.get<std::string>(), behavior == "Isolated");
    else if (pattern.is_object() && text.is_string() && !text.get<std::string>().empty())
      add_pattern(pattern_of_text(text.get<std::string>()), behavior == "Isolated");
    else
      throw unsupported("pre_tokenizer", quoted(json) + " has no pattern with a Regex or a String");
  }
  void add_pattern(const std::string& pattern, bool keeps_gaps) {
    try {
      parts_.steps.push_back(
          {.pattern = std::make_shared<const TextPattern>(pattern), .keeps_gaps = keeps_gaps});
    } catch (const std::invalid_argument& error) {
      throw unsupported("pre_tokenizer:", error.what());
    }
  }

  void read_model(const Json& json) {
    const std::string type = type_of(json);
    // Files of old versions name no type.
    const bool is_bpe =
        type == "BPE" || (json.is_object() && member(json, "type").is_null() && json.contains("merges"));
    if (!is_bpe)
      throw unsupported("model", "is of the type " + quoted(json.is_object() ? member(json, "type") : json));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& value = member(json, key); !value.is_null() && value != "")
        throw unsupported("model", std::string("has a ") + key);
    parts_.pairs.whole_first = flag(json, "ignore_merges", false);
    read_vocabulary(member(json, "vocab"));
    read_merges(member(json, "merges"));
  }

  std::int32_t id_of(const std::string& token, const Json& id) const {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= std::uint64_t{most_tokens})
      throw wrong("gives \"" + token + "\" the id " + quoted(id) + "; expected an integer from 0 to " +
                  std::to_string(most_tokens - 1));
    return id.get<std::int32_t>();
  }
  // Keeps the text of a token.
  void place(std::int32_t id, const std::string& text) {
    const auto index = static_cast<std::size_t>(id);
    if (index >= parts_.texts.size()) parts_.texts.resize(index + 1);
    parts_.texts[index] = text;
  }

  void read_vocabulary(const Json& vocab) {
    if (!vocab.is_object() || vocab.empty())
      throw wrong("has no model.vocab, an object of tokens and their ids");
    vocabulary_ = static_cast<std::int32_t>(vocab.size());
    std::vector<bool> taken;
    for (const auto& [token, value] : vocab.items()) {
      const std::int32_t id = id_of(token, value);
      const auto index = static_cast<std::size_t>(id);
      if (index >= taken.size()) taken.resize(index + 1);
      if (taken[index])
        throw wrong("gives the id " + std::to_string(id) + " to \"" + token + "\" and to another token");
      taken[index] = true;
      ids_.emplace(token, id);
      const std::optional<std::string> bytes = bytes_of_spelling(token);
      place(id, bytes.value_or(token));
      if (bytes) parts_.pairs.add_token(*bytes, id);
    }
  }

  std::int32_t token_of_merge(const std::string& token, std::size_t number) const {
    const auto found = ids_.find(token);
    if (found == ids_.end())
      throw wrong("has no id for the token \"" + token + "\" of merge " + std::to_string(number) +
                  " (from 0)");
    return found->second;
  }
  void read_merges(const Json& merges) {
    if (!merges.is_array()) throw wrong("has no model.merges, a list");
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const auto [left, right] = pair_of(merges[i], i);
      parts_.pairs.add_merge(token_of_merge(left, i), token_of_merge(right, i),
                             token_of_merge(left + right, i), BytePairs::Twice::last);
    }
  }
  // A merge is "a b" or ["a", "b"].
  std::pair<std::string, std::string> pair_of(const Json& merge, std::size_t number) const {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
        return {text.substr(0, space), text.substr(space + 1)};
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    }
    throw wrong("has as merge " + std::to_string(number) + " (from 0) " + quoted(merge) +
                "; expected two tokens");
  }

  void read_added(const Json& tokens) {
    if (tokens.is_null()) return;
    if (!tokens.is_array()) throw wrong("has added_tokens that are no list");
    for (const Json& token : tokens) read_added_token(token);
  }
  // The id that the library gives to an added token, whatever the file says.
  std::int32_t number_of_added(const std::string& text) const {
    if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
    std::int32_t next = vocabulary_;
    for (const AddedToken& token : parts_.added) next = std::max(next, token.id + 1);
    return next;
  }
  void read_added_token(const Json& json) {
    const Json& content = json.is_object() ? member(json, "content") : json;
    if (!json.is_object() || !content.is_string())
      throw wrong("has the added token " + quoted(json) + " without a content");
    AddedToken token{.text = content.get<std::string>()};
    if (token.text.empty()) return;
    token.id = id_of(token.text, member(json, "id"));
    token.special = flag(json, "special", false);
    token.normalized = flag(json, "normalized", !token.special);
    if (const std::int32_t number = number_of_added(token.text); token.id != number)
      throw wrong("gives the added token \"" + token.text + "\" the id " + std::to_string(token.id) +
                  ", where Hugging Face's tokenizers count " + std::to_string(number) +
                  ": they do not keep to a file with holes before its added tokens");
    if (!token.special &&
        (flag(json, "lstrip", false) || flag(json, "rstrip", false) || flag(json, "single_word", false)))
      throw unsupported("added_tokens", quoted(json) + " takes the space around it, or only a whole word");
    if (const auto index = static_cast<std::size_t>(token.id);
        !ids_.contains(token.text) && index < parts_.texts.size() && !parts_.texts[index].empty())
      throw wrong("gives the id " + std::to_string(token.id) + " to the added token \"" + token.text +
                  "\" and to another token");
    place(token.id, token.text);
    ids_.emplace(token.text, token.id);
    parts_.added.push_back(token);
  }

  // The token that ends a document, by the names that prepare.py looks for and DeepSeek's.
  std::optional<std::int32_t> end_of_text() const {
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]",
                             "<eos_token>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"})
      if (const auto found = ids_.find(name); found != ids_.end()) return found->second;
    return std::nullopt;
  }

  fs::path file_;
  BpeParts parts_;
  std::unordered_map<std::string, std::int32_t> ids_;  // by the spelling in the file
  std::int32_t vocabulary_ = 0;                        // number of tokens of the model
  bool byte_level_ = false;
};
}  // namespace

BpeTokenizer json_tokenizer(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!fs::is_regular_file(path) || !file) throw DataError("--tokenizer-dir: cannot read " + path.string());
  return json_tokenizer(path, std::string(std::istreambuf_iterator<char>(file), {}));
}

BpeTokenizer json_tokenizer(const fs::path& file, const std::string& contents) {
  return Reader(file).read(contents);
}

}  // namespace goat
