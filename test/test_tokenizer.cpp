// Bytes, bare ids, and UTF-8 characters that arrive in parts.

#include "data/tokenizer.h"

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
