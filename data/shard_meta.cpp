#include "data/shard_meta.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace goat {

std::optional<ShardMeta> read_shard_meta(const std::filesystem::path& folder) {
  std::ifstream file(folder / "meta.json", std::ios::binary);
  if (!file) return std::nullopt;
  const auto json = nlohmann::json::parse(file, nullptr, false);
  try {
    ShardMeta meta{.tokenizer = json.at("tokenizer").get<std::string>(),
                   .vocab = json.at("vocab").get<std::int64_t>(),
                   .end_of_text = {},
                   .sha256 = {}};
    if (const auto& token = json.at("end_of_text"); !token.is_null())
      meta.end_of_text = token.get<std::int64_t>();
    for (const auto& shard : json.at("shards"))
      meta.sha256[shard.at("file").get<std::string>()] = shard.at("sha256").get<std::string>();
    return meta;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace goat
