#include "data/shard_scan.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/checksum.h"
#include "data/data_error.h"

namespace goat {
namespace {

using Json = nlohmann::json;

constexpr std::size_t checksum_digits = 16;
constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();

// CBOR rather than text: it holds names of any bytes.
std::string sealed(const Json& json) {
  std::string bytes;
  Json::to_cbor(json, bytes);
  return checksum_of(bytes) + bytes;
}

// Calls read(json) for the value in `bytes`, and returns what it returns.
template <class Read>
auto unsealed(std::string_view bytes, const Read& read) {
  const auto refused = [&](const std::string& why) {
    return DataError("what rank 0 has told of the shards (" + std::to_string(bytes.size()) +
                     " bytes) is damaged: " + why + "; start the run again");
  };
  if (bytes.size() < checksum_digits ||
      checksum_of(bytes.substr(checksum_digits)) != bytes.substr(0, checksum_digits))
    throw refused("its checksum does not fit");
  try {
    return read(Json::from_cbor(bytes.substr(checksum_digits)));
  } catch (const Json::exception& error) {
    throw refused(error.what());
  } catch (const std::out_of_range& error) {
    throw refused(error.what());
  }
}

std::int64_t integer(const Json& json, std::int64_t least) {
  const auto value = json.get<std::int64_t>();
  if (value < least || value > most) throw std::out_of_range(std::to_string(value) + " is out of range");
  return value;
}

Json json_of(const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(); }

std::optional<std::int64_t> optional_integer(const Json& json, std::int64_t least) {
  if (json.is_null()) return std::nullopt;
  return integer(json, least);
}

Json json_of(const ShardMeta& meta) {
  return {{"tokenizer", meta.tokenizer},
          {"vocab", meta.vocab},
          {"end_of_text", json_of(meta.end_of_text)},
          {"record_tokens", json_of(meta.record_tokens)},
          {"sha256", meta.sha256},
          {"tokenizer_sha256", meta.tokenizer_sha256}};
}

ShardMeta meta_of(const Json& json) {
  return {.tokenizer = json.at("tokenizer"),
          .vocab = integer(json.at("vocab"), 1),
          .end_of_text = optional_integer(json.at("end_of_text"), 0),
          .record_tokens = optional_integer(json.at("record_tokens"), 1),
          .sha256 = json.at("sha256").get<std::map<std::string, std::string>>(),
          .tokenizer_sha256 = json.at("tokenizer_sha256")};
}

ScannedShard shard_of(const Json& json) {
  ScannedShard shard{.path = json.at("path"),
                     .token_bytes = integer(json.at("token_bytes"), 2),
                     .tokens = integer(json.at("tokens"), 0),
                     .samples = json.at("samples")};
  if (shard.token_bytes != 2 && shard.token_bytes != 4)
    throw std::out_of_range("tokens of " + std::to_string(shard.token_bytes) + " bytes");
  return shard;
}

ShardScan scan_of(const Json& json) {
  ShardScan scan{.working_folder = json.at("working_folder"), .shards = {}, .metas = {}};
  for (const Json& shard : json.at("shards").get_ref<const Json::array_t&>())
    scan.shards.push_back(shard_of(shard));
  if (scan.shards.empty()) throw std::out_of_range("no shard");
  for (const auto& [folder, meta] : json.at("metas").get_ref<const Json::object_t&>())
    scan.metas.emplace(folder, meta_of(meta));
  return scan;
}

}  // namespace

std::string encode(const ShardScan& scan) {
  Json shards = Json::array(), metas = Json::object();
  for (const ScannedShard& shard : scan.shards)
    shards.push_back({{"path", shard.path},
                      {"token_bytes", shard.token_bytes},
                      {"tokens", shard.tokens},
                      {"samples", shard.samples}});
  for (const auto& [folder, meta] : scan.metas) metas[folder] = json_of(meta);
  return sealed({{"working_folder", scan.working_folder}, {"shards", shards}, {"metas", metas}});
}

ShardScan decode_shard_scan(std::string_view bytes) { return unsealed(bytes, scan_of); }

std::string join_scans(const std::vector<std::string>& scans) { return sealed(scans); }

std::vector<std::string> split_scans(std::string_view bytes, std::size_t count) {
  return unsealed(bytes, [&](const Json& json) {
    auto scans = json.get<std::vector<std::string>>();
    if (scans.size() != count)
      throw std::out_of_range(std::to_string(scans.size()) + " sources, expected " + std::to_string(count));
    return scans;
  });
}

}  // namespace goat
