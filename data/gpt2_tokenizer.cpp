// Reads GPT-2's vocab.bpe and encoder.json.
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/bpe_tokenizer.h"
#include "data/byte_alphabet.h"
#include "data/data_error.h"
#include "data/parsed_json.h"
#include "data/utf8.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr const char* end_of_text_name = "<|endoftext|>";

std::string read_whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!fs::is_regular_file(path) || !file)
    throw DataError(
        "--tokenizer-dir: cannot read " + path.string() +
        "; GPT-2's vocab.bpe and encoder.json are at "
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/ (the same files are called "
        "merges.txt and vocab.json elsewhere)");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The bytes that a token of the files means, or why it means none.
std::string bytes_of(std::string_view text) {
  if (const std::optional<std::string> bytes = bytes_of_spelling(text)) return *bytes;
  throw std::invalid_argument("\"" + std::string(text) + "\" holds a character that stands for no byte");
}

void read_ids(const fs::path& path, const std::string& contents, BpeParts& parts) {
  const auto fail = [&](const std::string& what) {
    return DataError(terminal_text(path.string() + ": not GPT-2's table of token ids: " + what));
  };
  const nlohmann::json table = parsed_json(contents);
  if (!table.is_object()) throw fail("not one JSON object (is the file cut short?)");
  parts.texts.resize(table.size());
  std::vector<bool> seen(table.size());
  for (const auto& [text, id] : table.items()) {
    const bool fits =
        id.is_number_unsigned() && id.get<std::uint64_t>() < table.size() && !seen[id.get<std::size_t>()];
    if (!fits)
      throw fail("\"" + text + "\" has the id " +
                 id.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                 "; expected each of 0 to " + std::to_string(table.size() - 1) + " once");
    const auto index = id.get<std::size_t>();
    seen[index] = true;
    try {
      parts.texts[index] = bytes_of(text);
    } catch (const std::invalid_argument& error) {
      throw fail(error.what());
    }
    parts.pairs.add_token(parts.texts[index], static_cast<std::int32_t>(index));
  }
  for (int byte = 0; byte < 256; ++byte)
    if (parts.pairs.find_token(std::string(1, static_cast<char>(byte))) < 0)
      throw fail("byte " + std::to_string(byte) + " has no id");
  parts.end_of_text = parts.pairs.find_token(end_of_text_name);
  if (*parts.end_of_text < 0) {
    parts.end_of_text = static_cast<std::int32_t>(parts.texts.size());
    parts.texts.emplace_back(end_of_text_name);
  }
}

// Returns what is wrong with the line; empty: nothing.
std::string read_merge(const std::string& line, BytePairs& pairs) {
  const std::size_t space = line.find(' ');
  if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
    return "expected two tokens with a space between them";
  try {
    const std::string left = bytes_of(std::string_view(line).substr(0, space)),
                      right = bytes_of(std::string_view(line).substr(space + 1));
    const std::int32_t left_id = pairs.find_token(left), right_id = pairs.find_token(right),
                       merged_id = pairs.find_token(left + right);
    if (left_id < 0 || right_id < 0 || merged_id < 0)
      return "encoder.json has no id for a token of this merge; do the two files belong together?";
    pairs.add_merge(left_id, right_id, merged_id, BytePairs::Twice::first);
    return "";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

void read_merges(const fs::path& path, const std::string& contents, BytePairs& pairs) {
  std::istringstream lines(contents);
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    if (const std::string wrong = read_merge(line, pairs); !wrong.empty())
      throw DataError(terminal_text(path.string() + " line " + std::to_string(number) + ": " + wrong));
  }
}
}  // namespace

BpeTokenizer gpt2_tokenizer(const fs::path& folder) {
  const std::string ids = read_whole(folder / "encoder.json");
  return gpt2_tokenizer(folder, ids, read_whole(folder / "vocab.bpe"));
}

BpeTokenizer gpt2_tokenizer(const fs::path& folder, const std::string& ids, const std::string& merges) {
  BpeParts parts;
  parts.name = "gpt2";
  read_ids(folder / "encoder.json", ids, parts);
  read_merges(folder / "vocab.bpe", merges, parts.pairs);
  parts.steps.push_back({.pattern = std::make_shared<const TextPattern>(gpt2_pattern)});
  return BpeTokenizer(std::move(parts));
}

}  // namespace goat
