#include "data/shard_meta.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace goat {

namespace {
// Where get() alone would also convert a fraction, and those too large without a defined result.
std::int64_t integer(const nlohmann::json& json) {
  if (!json.is_number_integer()) throw nlohmann::json::type_error::create(302, "no integer", &json);
  return json.get<std::int64_t>();
}
}  // namespace

std::optional<ShardMeta> read_shard_meta(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "meta.json";
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const auto json = nlohmann::json::parse(file, nullptr, false);
  try {
    ShardMeta meta{.tokenizer = json.at("tokenizer").get<std::string>(),
                   .vocab = integer(json.at("vocab")),
                   .end_of_text = {},
                   .record_tokens = {},
                   .sha256 = {}};
    if (const auto& token = json.at("end_of_text"); !token.is_null()) meta.end_of_text = integer(token);
    if (const auto record = json.find("record_tokens"); record != json.end() && !record->is_null())
      meta.record_tokens = integer(*record);
    for (const auto& shard : json.at("shards"))
      meta.sha256[shard.at("file").get<std::string>()] = shard.at("sha256").get<std::string>();
    return meta;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace goat
