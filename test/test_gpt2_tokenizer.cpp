// GPT-2's tokenizer: a tiny vocabulary made here, damaged files, and (where they lie at hand) the published
// files with golden encodings.

#include "data/bpe_tokenizer.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "data/data_error.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/temporary_folder.h"

using namespace goat;
namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
using Merges = std::vector<std::pair<std::string, std::string>>;

namespace {

std::string utf8(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// The printable character of each byte, written out from GPT-2's ranges: what is not printable is numbered
// from U+0100.
std::string spelled(unsigned char byte) {
  int unprintable = 0;
  for (int b = 0; b < byte; ++b) unprintable += b <= 32 || (b >= 127 && b <= 160) || b == 173;
  const bool printable = byte > 32 && !(byte >= 127 && byte <= 160) && byte != 173;
  return utf8(printable ? byte : 256 + unprintable);
}

// A folder with a vocabulary of the 256 bytes (id = byte), the merges, and <|endoftext|>; removed with the
// object.
class TinyVocabulary {
 public:
  explicit TinyVocabulary(const Merges& merges, bool special = true) {
    for (int byte = 0; byte < 256; ++byte) ids[spelled(static_cast<unsigned char>(byte))] = byte;
    std::string lines = "#version: 0.2\n";
    for (const auto& [left, right] : merges) {
      const auto id = static_cast<int>(ids.size());
      ids.try_emplace(left + right, id);
      lines += left + " " + right + "\n";
    }
    const auto id = static_cast<int>(ids.size());
    if (special) ids["<|endoftext|>"] = id;
    write("vocab.bpe", lines);
    write("encoder.json", nlohmann::json(ids).dump());
  }

  void write(const char* name, const std::string& text) const { folder_.file(name, text); }
  const fs::path& folder() const { return folder_.path(); }

  std::map<std::string, int> ids;

 private:
  goat::test::TemporaryFolder folder_;
};

// Byte-pair encoding by its definition: merge the pair of lowest rank, leftmost first, until there is none.
Ids naive_encoding(const std::string& piece, const Merges& merges, const std::map<std::string, int>& ids) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.push_back(spelled(static_cast<unsigned char>(c)));
  for (;;) {
    std::size_t best_rank = merges.size(), best = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i)
      for (std::size_t rank = 0; rank < best_rank; ++rank)
        if (merges[rank].first == parts[i] && merges[rank].second == parts[i + 1]) best_rank = rank, best = i;
    if (best_rank == merges.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids result;
  for (const std::string& part : parts) result.push_back(ids.at(part));
  return result;
}

std::string decoded(const Tokenizer& tokenizer, const Ids& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += tokenizer.decode(id);
  return text;
}

// Is there a piece of `text` that holds `left` followed by `right`? In a vocabulary whose only merge is these
// two, they merge just there.
bool merged_across(const std::string& text, const std::string& left, const std::string& right) {
  const auto spell = [](const std::string& bytes) {
    std::string out;
    for (const char c : bytes) out += spelled(static_cast<unsigned char>(c));
    return out;
  };
  const TinyVocabulary vocabulary(Merges{{spell(left), spell(right)}});
  return gpt2_tokenizer(vocabulary.folder()).encode(text).size() < text.size();
}

}  // namespace

TEST_CASE("gpt2 tokenizer: merges apply by rank and leftmost first, as in the definition") {
  const Merges merges = {{"a", "b"},  {"b", "a"},    {"ab", "ab"}, {"a", "a"},
                         {"aa", "b"}, {"abab", "a"}, {"b", "b"}};
  const TinyVocabulary vocabulary(merges);
  const BpeTokenizer tokenizer = gpt2_tokenizer(vocabulary.folder());
  CHECK(tokenizer.vocabulary() == 256 + 7 + 1);
  CHECK(tokenizer.end_of_text() == 263);
  const std::uint64_t seed = goat::test::fresh_seed();
  INFO("seed " << seed);
  goat::test::Rng rng(seed);
  for (int repeat = 0; repeat < 500; ++repeat) {
    std::string word;
    for (auto length = 1 + rng() % 30; length > 0; --length) word += static_cast<char>('a' + rng() % 2);
    INFO(word);
    const Ids ids = tokenizer.encode(word);
    CHECK(ids == naive_encoding(word, merges, vocabulary.ids));
    CHECK(decoded(tokenizer, ids) == word);
  }
}

TEST_CASE("gpt2 tokenizer: a long run without spaces takes no quadratic time") {
  const TinyVocabulary vocabulary(Merges{{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  const std::string run(200'003, 'a');
  const Ids ids = gpt2_tokenizer(vocabulary.folder()).encode(run);
  CHECK(ids.size() == 25'000 + 2);
}

TEST_CASE("gpt2 tokenizer: pieces end where GPT-2's pattern ends them") {
  CHECK(merged_across("they're", "r", "e"));
  CHECK_FALSE(merged_across("they're", "y", "'"));
  CHECK_FALSE(merged_across("'tis", "t", "i"));     // 't is a piece
  CHECK_FALSE(merged_across("they'RE", "'", "R"));  // contractions are lower case
  CHECK(merged_across("a b", " ", "b"));            // a word takes the space before it
  CHECK_FALSE(merged_across("a  b", " ", " "));     // of two spaces, the last goes with the word
  CHECK(merged_across("a   b", " ", " "));
  CHECK(merged_across("a  ", " ", " "));             // at the end, all
  CHECK_FALSE(merged_across("a\n b", "\n", " "));    // "\n", " b"
  CHECK_FALSE(merged_across("a\n\nb", "\n", "\n"));  // each a piece: only ' ' joins a word
  CHECK_FALSE(merged_across("ab12", "b", "1"));
  CHECK_FALSE(merged_across("12!", "2", "!"));
  CHECK_FALSE(merged_across("a_b", "a", "_"));
  CHECK(merged_across("\u00e9t\u00e9", "\xa9", "t"));    // letters beyond ASCII
  CHECK(merged_across("\u0663\u0664", "\xa3", "\xd9"));  // digits beyond ASCII
  CHECK(merged_across("x\u00bd1", "\xbd", "1"));         // a fraction is a number
  CHECK_FALSE(merged_across("a\u00a0b", "\xa0", "b"));   // white space other than ' ' never joins a word
  CHECK_FALSE(merged_across("\u00a0!", "\xa0", "!"));
  CHECK(merged_across("!\u180e", "!", "\xe1"));            // U+180E is no white space
  CHECK_FALSE(merged_across("!\U00031350", "!", "\xf0"));  // a letter since Unicode 15.0
  CHECK_FALSE(merged_across("a\U0001CCF0", "a", "\xf0"));  // a number since Unicode 16.0
}

TEST_CASE("gpt2 tokenizer: text goes there and back, special tokens spelled out in it are ordinary text") {
  const TinyVocabulary vocabulary(Merges{{"l", "l"}, {"o", "r"}});
  const BpeTokenizer tokenizer = gpt2_tokenizer(vocabulary.folder());
  for (const std::string& text :
       {std::string(), std::string("hello  world\r\n\t"), std::string("na\u00efve \U0001F410 \u65e5\u672c"),
        std::string("a\0b", 3), std::string("<|endoftext|> x")}) {
    CHECK(decoded(tokenizer, tokenizer.encode(text)) == text);
    CHECK(std::ranges::count(tokenizer.encode(text), *tokenizer.end_of_text()) == 0);
  }
  CHECK(tokenizer.decode(*tokenizer.end_of_text()) == "<|endoftext|>");
  CHECK_THROWS_WITH(tokenizer.encode("abc\xff"), ContainsSubstring("byte 3"));
  CHECK_THROWS_AS(tokenizer.encode("\xe2\x82"), std::invalid_argument);
}

TEST_CASE(
    "gpt2 tokenizer: without <|endoftext|> in encoder.json it gets the next id; CRLF line ends are read") {
  const TinyVocabulary vocabulary(Merges{{"a", "b"}}, false);
  vocabulary.write("vocab.bpe", "#version: 0.2\r\na b\r\n\r\n");
  const BpeTokenizer tokenizer = gpt2_tokenizer(vocabulary.folder());
  CHECK(tokenizer.end_of_text() == 257);
  CHECK(tokenizer.vocabulary() == 258);
  CHECK(tokenizer.encode("ab") == Ids{256});
}

TEST_CASE("gpt2 tokenizer: missing and damaged files are refused, with the file and the place") {
  TinyVocabulary vocabulary(Merges{{"a", "b"}});
  const auto refused = [&](const char* message) {
    CHECK_THROWS_AS(gpt2_tokenizer(vocabulary.folder()), DataError);
    CHECK_THROWS_WITH(gpt2_tokenizer(vocabulary.folder()), ContainsSubstring(message));
  };
  const std::string ids = nlohmann::json(vocabulary.ids).dump();
  vocabulary.write("encoder.json", ids.substr(0, ids.size() / 2));
  refused("encoder.json");
  for (const char* text :
       {"", "[]", "{\"a\": \"b\"}", "{\"a\": -1}", "{\"a\": 7}", "{\"a\": 0.5}", "\xff\xfe"}) {
    vocabulary.write("encoder.json", text);
    refused("encoder.json");
  }
  auto doubled = vocabulary.ids;
  doubled["ab"] = 3;
  vocabulary.write("encoder.json", nlohmann::json(doubled).dump());
  refused("once");
  auto foreign = vocabulary.ids;
  foreign["\u65e5"] = static_cast<int>(foreign.size());
  vocabulary.write("encoder.json", nlohmann::json(foreign).dump());
  refused("stands for no byte");

  vocabulary.write("encoder.json", ids);
  vocabulary.write("vocab.bpe", "#version: 0.2\na b\nab c\n");
  refused("line 3");
  vocabulary.write("vocab.bpe", "a b c\n");
  refused("line 1");
  vocabulary.write("vocab.bpe", "ab\n");
  refused("line 1");
  vocabulary.write("vocab.bpe", "\xc4 b\n");
  refused("line 1");
  fs::remove(vocabulary.folder() / "vocab.bpe");
  refused("vocab.bpe");
  CHECK_THROWS_WITH(gpt2_tokenizer(vocabulary.folder() / "nowhere"), ContainsSubstring("https://"));
}

TEST_CASE("gpt2 tokenizer: GPT-2's own files give the golden encodings") {
  const fs::path folder =
      fs::path(__FILE__).parent_path().parent_path().parent_path() / "shared" / "data" / "gpt2";
  if (!fs::exists(folder / "golden.json")) {
    WARN("skipped: no " << folder.string());
    return;
  }
  const BpeTokenizer tokenizer = gpt2_tokenizer(folder);
  CHECK(tokenizer.vocabulary() == 50257);
  CHECK(tokenizer.end_of_text() == 50256);
  std::ifstream file(folder / "golden.json");
  for (const auto& example : nlohmann::json::parse(file)) {
    const auto text = example.at("text").get<std::string>();
    INFO(text);
    CHECK(tokenizer.encode(text) == example.at("tokens").get<Ids>());
    CHECK(decoded(tokenizer, tokenizer.encode(text)) == text);
  }
}
