// ShardMeta: the description of shards in meta.json, which prepare.py writes beside them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace goat {

struct ShardMeta {
  std::string tokenizer;                      // "bytes", "gpt2"
  std::int64_t vocab = 0;                     // vocabulary size of the tokenizer
  std::optional<std::int64_t> end_of_text;    // the token before each document, if there is one
  std::optional<std::int64_t> record_tokens;  // the shards hold whole records of so many tokens
  std::map<std::string, std::string> sha256;  // of each shard, by file name
  // Of a tokenizer.json: its sha256, for its name says little. Empty for tokenizers that their name tells.
  std::string tokenizer_sha256;

  // Whether a model with a vocabulary of `model_vocab` fits this tokenizer. It may have up to 127 more
  // tokens as padding.
  bool fits(std::int64_t model_vocab) const { return vocab <= model_vocab && model_vocab < vocab + 128; }
  bool operator==(const ShardMeta&) const = default;
};

// Reads FOLDER/meta.json. nullopt if there is none, or if it lacks what prepare.py writes: shards from
// another source may have a meta.json of their own. Throws DataError if it is damaged: without the checksums
// in it, a damaged shard would not be noticed either.
std::optional<ShardMeta> read_shard_meta(const std::filesystem::path& folder);

}  // namespace goat
