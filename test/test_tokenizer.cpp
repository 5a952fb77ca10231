// Bytes, alphabets, bare ids; UTF-8 that arrives in parts, and what a terminal gets of it.

#include "data/tokenizer.h"

#include "data/utf8.h"

#include "test/catch.h"
#include "test/operand.h"

using namespace goat;

TEST_CASE("tokenizer bytes: every byte is its own token, there and back") {
  const ByteTokenizer tokenizer;
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  REQUIRE(ids.size() == 256);
  std::string back;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] == static_cast<std::int32_t>(i));
    back += tokenizer.decode(ids[i]);
  }
  CHECK(back == text);
}

TEST_CASE("tokenizer ids: numbers separated by white space; anything else is refused and named") {
  const IdTokenizer tokenizer(64);
  CHECK(tokenizer.encode(" 3 0\n63\t7 ") == std::vector<std::int32_t>{3, 0, 63, 7});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.decode(12) == "12 ");
  for (const char* bad : {"64", "-1", "3.5", "x", "7x", "99999999999999", "+3"})
    CHECK_THROWS_WITH(tokenizer.encode(std::string("1 ") + bad), ContainsSubstring(bad));
}

TEST_CASE("tokenizer dna: bases, lower case too; white space is skipped, other letters are refused") {
  const AlphabetTokenizer tokenizer(dna_alphabet());
  CHECK(tokenizer.name() == std::string("dna"));
  CHECK(tokenizer.vocabulary() == 5);
  CHECK(tokenizer.encode("ACGNT") == std::vector<std::int32_t>{0, 1, 2, 3, 4});
  CHECK(tokenizer.encode("ac\r\ngn t\n") == std::vector<std::int32_t>{0, 1, 2, 3, 4});
  CHECK(tokenizer.encode("").empty());
  std::string text;
  for (std::int32_t id = 0; id < 5; ++id) text += tokenizer.decode(id);
  CHECK(text == "ACGNT");
  CHECK(tokenizer.encode(tokenizer.empty_prompt()) == std::vector<std::int32_t>{3});
  CHECK_THROWS_WITH(tokenizer.encode("AC\nR"), ContainsSubstring("\"R\" at byte 3"));
  CHECK_THROWS_WITH(tokenizer.encode("A\xc3\xa9"), ContainsSubstring("\"\u00e9\" at byte 1"));
  CHECK_THROWS_WITH(tokenizer.encode("A\x1b"), ContainsSubstring("\"\uFFFD\" at byte 1"));
  CHECK_THROWS_WITH(tokenizer.encode("[\xff"), ContainsSubstring("expected ACGNT"));
}

TEST_CASE("tokenizer characters: <pad> <bos> <eos> are written, but read as the characters they consist of") {
  const AlphabetTokenizer tokenizer(task_characters("abo s<>"));
  CHECK(tokenizer.vocabulary() == 10);
  CHECK(tokenizer.encode("<bos>") == std::vector<std::int32_t>{8, 4, 5, 7, 9});
  CHECK(tokenizer.decode(0) + tokenizer.decode(1) + tokenizer.decode(2) == "<pad><bos><eos>");
  CHECK(tokenizer.encode(tokenizer.empty_prompt()) == std::vector<std::int32_t>{6});
  CHECK_THROWS_WITH(tokenizer.encode("aA"), ContainsSubstring("\"A\" at byte 1"));
}

TEST_CASE("utf-8: a terminal gets newline and tab, and U+FFFD for other controls and for what is no UTF-8") {
  const std::string passes = "a\n\tb \u00e9\u20ac\U0001F410\u00a0\uFFFD";
  CHECK(terminal_text(passes) == passes);
  for (const std::string one : {"\x1b", "\r", "\x7f", "\b", "\u009b", "\u0080", "\u009f", "\x80", "\xff",
                                "\xc3", "\xe2\x82", "\xf0\x9f\x90", "\xed"}) {
    INFO("of " << one.size() << " bytes, the first " << int{static_cast<unsigned char>(one[0])});
    CHECK(terminal_text("x" + one + "y") == "x\uFFFDy");
    CHECK(terminal_text(one) == "\uFFFD");
  }
  CHECK(terminal_text(std::string(1, '\0')) == "\uFFFD");
  CHECK(terminal_text("\xed\xa0\x80") == "\uFFFD\uFFFD\uFFFD");  // half a surrogate pair
  CHECK(terminal_text("\xf0\x9f(") == "\uFFFD(");
}

TEST_CASE("utf-8: every code point is written as it is read, and nothing else is a character") {
  for (char32_t code = 0; code < 0x110000; ++code) {
    const std::string text = utf8_of(code);
    const Utf8Character read = character_at(text, 0);
    const bool exists = code < 0xD800 || code > 0xDFFF;
    const bool right = exists ? read.valid && read.code == code && read.bytes == text.size() : !read.valid;
    if (!right) FAIL("U+" << std::hex << static_cast<std::uint32_t>(code));
  }
  CHECK_FALSE(character_at("\xc0\x80", 0).valid);
  CHECK_FALSE(character_at("\xe0\x80\x80", 0).valid);
  CHECK_FALSE(character_at("\xf4\x90\x80\x80", 0).valid);
  CHECK(valid_utf8("ab\xff") == 2);
  CHECK(valid_utf8("ab\u00e9") == 4);
}

TEST_CASE("utf-8: only a character that may still be completed is held back") {
  const auto held_back = [](const std::string& text) { return text.size() - complete_utf8(text); };
  CHECK(held_back("") == 0);
  CHECK(held_back("abc") == 0);
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001F410", "\ud7ff", "\ue000", "\U0010FFFF"})
    for (std::size_t bytes = 1; bytes <= character.size(); ++bytes) {
      INFO(bytes << " of " << character.size() << " bytes of " << character);
      CHECK(held_back("x" + character.substr(0, bytes)) == (bytes == character.size() ? 0 : bytes));
      CHECK(held_back(character + character.substr(0, bytes)) == (bytes == character.size() ? 0 : bytes));
    }
  // what cannot become a character passes at once
  for (const std::string invalid :
       {"\x80", "\xbf\xbf\xbf\xbf", "\xc0", "\xc1", "\xf5", "\xff", "\xe0\x80", "\xed\xa0", "\xf0\x80\x80",
        "\xf4\x90", "\xc3(", "\xe2\x82(", "\xf0\x9f\x90("}) {
    INFO("invalid of " << invalid.size() << " bytes");
    CHECK(held_back(invalid) == 0);
    CHECK(held_back("abcd" + invalid) == 0);
  }
}

TEST_CASE("utf-8: a stream of random bytes comes out whole, and never holds back more than three bytes") {
  const std::uint64_t seed = goat::test::fresh_seed();
  INFO("seed " << seed);
  goat::test::Rng rng(seed);
  std::string in, out, held;
  for (int n = 0; n < 20000; ++n) {
    const auto random = rng();
    const char byte = static_cast<char>(random % 3 == 0 ? 0x80 + random / 3 % 0x40 : random / 3 % 256);
    in += byte;
    held += byte;
    const std::size_t ready = complete_utf8(held);
    out += held.substr(0, ready);
    held.erase(0, ready);
    REQUIRE(held.size() <= 3);
  }
  CHECK(out + held == in);
}
