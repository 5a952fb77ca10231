// encode_texts FOLDER|FILE: the tokens of many texts, for tests that compare them with those of another
// library. FOLDER has GPT-2's files, FILE is a tokenizer.json. Reads from stdin, for each text, its length in
// bytes (int32) and its bytes; writes to stdout the number of its tokens (int32; -1 if it was refused), the
// tokens (int32), the length of what they decode to (int32) and its bytes.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/bpe_tokenizer.h"

namespace {

template <class Value>
void put(const Value* values, std::size_t count) {
  if (std::fwrite(values, sizeof(Value), count, stdout) != count)
    throw std::runtime_error("cannot write to stdout");
}

void put_number(std::size_t number) {
  const auto value = static_cast<std::int32_t>(number);
  put(&value, 1);
}

void answer(const goat::Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  std::string decoded;
  try {
    ids = tokenizer.encode(text);
  } catch (const std::invalid_argument&) {
    const std::int32_t refused = -1;
    put(&refused, 1);
    return;
  }
  for (const std::int32_t id : ids) decoded += tokenizer.decode(id);
  put_number(ids.size());
  put(ids.data(), ids.size());
  put_number(decoded.size());
  put(decoded.data(), decoded.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: encode_texts FOLDER|FILE");
    const std::filesystem::path path = argv[1];
    const goat::BpeTokenizer tokenizer =
        std::filesystem::is_directory(path) ? goat::gpt2_tokenizer(path) : goat::json_tokenizer(path);
    std::int32_t bytes = 0;
    while (std::fread(&bytes, sizeof bytes, 1, stdin) == 1) {
      std::string text(static_cast<std::size_t>(bytes), '\0');
      if (std::fread(text.data(), 1, text.size(), stdin) != text.size())
        throw std::runtime_error("stdin ends within a text");
      answer(tokenizer, text);
    }
    return std::fflush(stdout) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
