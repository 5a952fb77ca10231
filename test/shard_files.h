// Writing token shards and reading sequences in tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "data/checksum.h"
#include "data/shard.h"
#include "data/token_source.h"
#include "test/catch.h"

namespace goat::test {

using Tokens = std::vector<std::int32_t>;
using Header = std::array<std::int32_t, 256>;

inline void write_bytes(const std::string& path, const void* bytes, std::size_t count) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
  REQUIRE(file.good());
}

inline std::string sha256_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  Sha256 digest;
  digest.add(bytes.data(), bytes.size());
  return digest.finish();
}

inline Header header_of(std::int64_t tokens, const Shard::Format& format = Shard::uint16_tokens) {
  return {format.magic, format.version, static_cast<std::int32_t>(tokens)};
}

// The tokens have the low bytes of their ids, as many as the format says.
inline void write_shard(const std::string& path, const Tokens& tokens, const Header& header,
                        const Shard::Format& format = Shard::uint16_tokens) {
  const auto width = static_cast<std::size_t>(format.token_bytes);
  std::vector<char> bytes(sizeof(header) + width * tokens.size());
  std::copy_n(reinterpret_cast<const char*>(header.data()), sizeof(header), bytes.begin());
  char* next = bytes.data() + sizeof(header);
  for (const std::int32_t& token : tokens)
    next = std::copy_n(reinterpret_cast<const char*>(&token), width, next);
  write_bytes(path, bytes.data(), bytes.size());
}
inline void write_shard(const std::string& path, const Tokens& tokens,
                        const Shard::Format& format = Shard::uint16_tokens) {
  write_shard(path, tokens, header_of(std::ssize(tokens), format), format);
}

// first, first + 1, ...: a token's id is its position in the stream.
inline Tokens counting(std::size_t count, std::int32_t first = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Sequence {
  std::vector<std::int32_t> inputs, targets;
  bool operator==(const Sequence&) const = default;
};
inline Sequence read(TokenSource& source, std::size_t length, std::uint64_t index) {
  Sequence sequence{std::vector<std::int32_t>(length, -7), std::vector<std::int32_t>(length, -7)};
  source.read(index, sequence.inputs, sequence.targets);
  return sequence;
}

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "(no error)";
}

inline void check_error(const std::function<void()>& action, std::initializer_list<std::string> parts) {
  const std::string message = error_of(action);
  for (const std::string& part : parts) CHECK_THAT(message, ContainsSubstring(part));
}

}  // namespace goat::test
