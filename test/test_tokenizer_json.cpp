// The tokenizer.json of Hugging Face's tokenizers: what is read of it, and what is refused.
// test_tokenizer_libraries.py compares the tokens with those of the library.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/bpe_tokenizer.h"
#include "data/data_error.h"
#include "data/nfc.h"
#include "data/pattern_translation.h"
#include "data/utf8.h"
#include "test/catch.h"
#include "test/temporary_folder.h"

using namespace goat;
using nlohmann::json;
using Ids = std::vector<std::int32_t>;

namespace {

// Printable ASCII as itself, the space as U+0120, the newline as U+010A, \xc3 and \xa9 (of U+00E9) as they
// are in Latin-1; "ab" is 200, "abc" is 201, "cd" is 202. Ids 127 to 199 are no tokens.
json vocabulary() {
  json vocab = {{"\u0120", 0}, {"\u010a", 1}, {"\u00c3", 2}, {"\u00a9", 3},
                {"ab", 200},   {"abc", 201},  {"cd", 202}};
  for (int c = '!'; c <= '~'; ++c) vocab[std::string(1, static_cast<char>(c))] = c;
  return vocab;
}

json small_file() {
  return {{"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary()}, {"merges", {"a b", "c d", "ab c"}}}}};
}

BpeTokenizer tokenizer_of(const json& file) { return json_tokenizer("tokenizer.json", file.dump()); }

std::string refusal(const json& file) {
  try {
    tokenizer_of(file);
  } catch (const DataError& error) {
    return error.what();
  }
  return "none";
}

std::string decoded(const Tokenizer& tokenizer, const Ids& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += tokenizer.decode(id);
  return text;
}

}  // namespace

TEST_CASE("tokenizer.json: merges apply by rank; whole words go first if merges are to be ignored") {
  json file = small_file();
  const BpeTokenizer tokenizer = tokenizer_of(file);
  CHECK(tokenizer.name() == std::string("tokenizer.json"));
  CHECK(tokenizer.vocabulary() == 203);
  CHECK(tokenizer.decode(150).empty());
  CHECK(tokenizer.encode("ab") == Ids{200});
  CHECK(tokenizer.encode("abcd") == Ids{200, 202});
  CHECK(tokenizer.encode("abc") == Ids{201});
  CHECK(decoded(tokenizer, tokenizer.encode("x \u00e9\nabcd")) == "x \u00e9\nabcd");
  CHECK_THROWS_WITH(tokenizer.encode("a\u00e8"), ContainsSubstring("no token for byte 168"));
  CHECK_THROWS_WITH(tokenizer.encode("ab\xc3"), ContainsSubstring("no UTF-8 at byte 2"));
  file["model"]["merges"] = json::array({json::array({"c", "d"}), json::array({"a", "b"})});
  CHECK(tokenizer_of(file).encode("abc") == Ids{200, 'c'});
  file["model"]["ignore_merges"] = true;
  CHECK(tokenizer_of(file).encode("abc") == Ids{201});
  CHECK(tokenizer_of(file).encode("abcd") == Ids{200, 202});
}

TEST_CASE("tokenizer.json: steps cut one after the other, a space is put before each piece if asked for") {
  json file = small_file();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"String", "."}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "Split"}, {"pattern", {{"Regex", "b(?=c)"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}}}};
  CHECK(tokenizer_of(file).encode("cd.abc") == Ids{0, 202, 0, '.', 0, 'a', 0, 'b', 0, 'c'});
  auto& split = file["pre_tokenizer"]["pretokenizers"][1];
  split = {{"type", "Split"}, {"pattern", {{"Regex", "[a-d]+"}}}, {"behavior", "Removed"}, {"invert", true}};
  CHECK(tokenizer_of(file).encode("cd.xab") == Ids{0, 202, 0, 200});
  split = {{"type", "Digits"}, {"individual_digits", true}};
  CHECK(tokenizer_of(file).encode("12") == Ids{0, '1', 0, '2'});
  split["individual_digits"] = false;
  CHECK(tokenizer_of(file).encode("12") == Ids{0, '1', '2'});
}

TEST_CASE("tokenizer.json: added tokens are found in a text, special ones are ordinary text") {
  json file = small_file();
  file["added_tokens"] = {{{"id", 203}, {"content", "<|endoftext|>"}, {"special", true}},
                          {{"id", 204}, {"content", "<t>"}, {"special", false}, {"normalized", false}},
                          {{"id", 205}, {"content", "<t>abc"}, {"special", false}, {"normalized", false}},
                          {{"id", 206}, {"content", "\u65e5"}, {"special", false}}};
  // The library numbers added tokens from the number of tokens on, which holes in the ids contradict.
  CHECK_THAT(refusal(file), ContainsSubstring("count 101"));
  json& vocab = file["model"]["vocab"];
  for (int id = 4; id < 200; ++id)
    if (id < '!' || id > '~') vocab["filler" + std::to_string(id)] = id;
  const BpeTokenizer tokenizer = tokenizer_of(file);
  CHECK(tokenizer.vocabulary() == 207);
  CHECK(tokenizer.end_of_text() == 203);
  CHECK(tokenizer.decode(203) == "<|endoftext|>");
  CHECK(tokenizer.encode("a<t>b\u65e5") == Ids{'a', 204, 'b', 206});
  CHECK(tokenizer.encode("<t>abcd") == Ids{205, 'd'});
  CHECK(tokenizer.encode("<|endoftext|>").size() == 13);
  file["added_tokens"][0]["content"] = "[EOS]";
  CHECK(tokenizer_of(file).end_of_text() == 203);
  file["added_tokens"][0]["content"] = "<|im_end|>";
  CHECK_FALSE(tokenizer_of(file).end_of_text());
  file["added_tokens"][1]["lstrip"] = true;
  CHECK_THAT(refusal(file), ContainsSubstring("space around it"));
  file["added_tokens"][1] = {{"id", 201}, {"content", "<t>"}};
  CHECK_THAT(refusal(file), ContainsSubstring("\"<t>\" the id 201"));
}

TEST_CASE("tokenizer.json: text is composed where the file says so") {
  json file = small_file();
  CHECK_THROWS(tokenizer_of(file).encode("e\u0301"));
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({{{"type", "NFC"}}})}};
  CHECK(tokenizer_of(file).encode("e\u0301") == Ids{2, 3});
  CHECK(to_nfc("a\u0323\u0301 e\u0301") == "\u1ea1\u0301 \u00e9");
  CHECK(to_nfc("e\u1df9\u0301") == "e\u1df9\u0301");  // a mark that the libraries do not know
}

TEST_CASE("tokenizer.json: what is not supported or damaged is refused, and said") {
  const json good = small_file();
  CHECK(refusal(good) == "none");
  const auto changed = [&](const char* pointer, const json& value) {
    json file = good;
    file[json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  const struct {
    const char* pointer;
    json value;
    const char* message;
  } cases[] = {
      {"/model/type", "Unigram", "\"Unigram\""},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix"},
      {"/model/ignore_merges", 1, "ignore_merges"},
      {"/model/vocab", json::array(), "model.vocab"},
      {"/model/vocab/x", -1, "\"x\" the id -1"},
      {"/model/vocab/x", 1e9, "the id 1000000000"},
      {"/model/vocab/x", 'y', "another token"},
      {"/model/merges", "a b", "model.merges"},
      {"/model/merges/1", "a b c", "merge 1"},
      {"/model/merges/1", json::array({"a"}), "merge 1"},
      {"/model/merges/1", "a x", "\"ax\" of merge 1"},
      {"/normalizer", {{"type", "Lowercase"}}, "Lowercase"},
      {"/pre_tokenizer", nullptr, "no ByteLevel"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "Metaspace"},
      {"/pre_tokenizer", {{"type", "Sequence"}}, "plain list"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "MergedWithPrevious"}},
       "MergedWithPrevious"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "\\b"}}}, {"behavior", "Isolated"}},
       "\\b"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "a*"}}}, {"behavior", "Isolated"}},
       "empty"},
      {"/added_tokens", 1, "added_tokens"},
      {"/added_tokens", {{{"id", 203}}}, "without a content"},
  };
  for (const auto& [pointer, value, message] : cases) {
    INFO(pointer << " = " << value.dump());
    CHECK_THAT(changed(pointer, value), ContainsSubstring(message));
  }
  CHECK_THAT(changed("/pre_tokenizer", {{"type", "Metaspace"}}), ContainsSubstring("--tokenizer ids"));
  json sequence = {{"type", "ByteLevel"}};
  for (int depth = 0; depth < 40; ++depth)
    sequence = {{"type", "Sequence"}, {"pretokenizers", json::array({sequence})}};
  CHECK_THAT(changed("/pre_tokenizer", sequence), ContainsSubstring("Sequence"));
  const std::string text = good.dump(), deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& damaged :
       {"{\"normalizer\": " + deep + "," + text.substr(1), text + std::string(1, '\0'), deep})
    CHECK_THROWS_WITH(json_tokenizer("t.json", damaged), ContainsSubstring("no JSON object"));
  CHECK_THROWS_AS(json_tokenizer("t.json", text.substr(0, text.size() / 2)), DataError);
  CHECK_THROWS_WITH(json_tokenizer("nowhere/t.json"), ContainsSubstring("nowhere/t.json"));
}

TEST_CASE("patterns: what the libraries would read in another way is refused, with its place") {
  for (const char* pattern :
       {"^a",          "a$",      "[a",          "a)",        "(a",      "(?i)a", "(?<name>a)",
        "(*F)a",       "\\w",     "\\b",         "\\p{Han}",  "\\p{L",   "\\1",   "[[:alpha:]]",
        "[a&&b]",      "[]",      "[b-a]",       "[a-\\d]",   "[\\d-a]", "a**",   "a{2}?",
        "{2}",         "a{2",     "a{,2}",       "a{1001}",   "*a",      "\\",    "\\xff",
        "\\x{110000}", "\\ud800", "(?i:\\p{L})", "(?i:[^a])", "\\<",     "\\K"}) {
    INFO(pattern);
    CHECK_THROWS_WITH(translated_pattern(pattern), ContainsSubstring("at byte"));
  }
  CHECK_THROWS_AS(translated_pattern(std::string(101, '(') + "a" + std::string(101, ')')),
                  std::invalid_argument);
  CHECK_THROWS_AS(translated_pattern(std::string(70000, 'a')), std::invalid_argument);
}

TEST_CASE("patterns: PCRE2 gives up on a pattern that takes too many steps, and says so") {
  const TextPattern pattern("(?:a+)+[^a]");
  CHECK_THROWS_WITH(pattern.cut(std::string(40, 'a'), [](std::string_view, bool) {}),
                    ContainsSubstring("too many steps"));
  const TextPattern spaces(R"(\s*[\r\n]+|\s+(?!\S)|\s+|\S)");
  std::size_t pieces = 0;
  spaces.cut(std::string(3'000'000, ' ') + "x", [&](std::string_view, bool) { ++pieces; });
  CHECK(pieces == 3);
}
