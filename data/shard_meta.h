// ShardMeta: what meta.json, which prepare.py leaves beside shards, says about them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace goat {

struct ShardMeta {
  std::string tokenizer;                      // "bytes", "gpt2"
  std::int64_t vocab = 0;                     // tokens of the tokenizer
  std::optional<std::int64_t> end_of_text;    // the token before each document, where there is one
  std::map<std::string, std::string> sha256;  // of each shard, by file name

  // Whether a model of `model_vocab` tokens is for this tokenizer: it may have up to 127 more, as padding.
  bool fits(std::int64_t model_vocab) const { return vocab <= model_vocab && model_vocab < vocab + 128; }
};

// Reads FOLDER/meta.json. nullopt where there is none, or where it is not what prepare.py writes: shards that
// others made may stand beside a meta.json of their own.
std::optional<ShardMeta> read_shard_meta(const std::filesystem::path& folder);

}  // namespace goat
