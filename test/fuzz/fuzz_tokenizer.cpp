// Tokenizer files of any bytes are read or refused with DataError, and a tokenizer that was read encodes any
// text or refuses it; what it encodes can be decoded. The first line of the input is the text, the second the
// kind of files, the rest a tokenizer.json, or encoder.json and vocab.bpe with a line "--" between them.
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "data/bpe_tokenizer.h"
#include "data/data_error.h"
#include "data/utf8.h"

namespace {

// Takes what stands before `mark` off `input`, and the mark.
std::string take(std::string& input, const std::string& mark) {
  const std::size_t end = input.find(mark);
  std::string taken = input.substr(0, end);
  input.erase(0, end == std::string::npos ? end : end + mark.size());
  return taken;
}

std::optional<goat::BpeTokenizer> read(std::string input, const std::string& kind) {
  try {
    if (kind != "gpt2") return goat::json_tokenizer("tokenizer.json", input);
    const std::string ids = take(input, "\n--\n");
    return goat::gpt2_tokenizer("folder", ids, input);
  } catch (const goat::DataError&) {
    return std::nullopt;
  }
}

void encode(const goat::BpeTokenizer& tokenizer, const std::string& text) {
  try {
    std::string decoded;
    for (const std::int32_t id : tokenizer.encode(text)) decoded += tokenizer.decode(id);
    if (goat::valid_utf8(text) < text.size()) throw std::logic_error("a text that is no UTF-8 was encoded");
  } catch (const std::invalid_argument&) {
  } catch (const std::runtime_error&) {  // the pattern takes too many steps
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string input(reinterpret_cast<const char*>(data), size);
  const std::string text = take(input, "\n"), kind = take(input, "\n");
  if (const std::optional<goat::BpeTokenizer> tokenizer = read(input, kind)) encode(*tokenizer, text);
  return 0;
}
