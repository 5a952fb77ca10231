#include "train/run/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/data_error.h"
#include "data/parsed_json.h"
#include "train/config/config.h"

namespace goat {

namespace {
constexpr int format_of_files = 1, format_of_pieces = 2;

// Reads a member of a manifest and checks its type.
template <class T>
T member(const nlohmann::json& json, const char* name, const std::string& origin) {
  const auto found = json.find(name);
  bool good = found != json.end();
  if constexpr (std::is_same_v<T, std::string>)
    good = good && found->is_string();
  else if constexpr (std::is_same_v<T, double>)
    good = good && (found->is_number() || found->is_null());  // null stands for NaN
  else
    good = good && found->is_number_unsigned() &&
           found->template get<std::uint64_t>() < (std::uint64_t{1} << 62);
  if (!good)
    throw DataError(origin + ": '" + name +
                    "' is missing or not what a checkpoint's manifest holds; the file is damaged");
  if constexpr (std::is_same_v<T, double>)
    if (found->is_null()) return RunState::nan;
  return found->template get<T>();
}

std::vector<double> numbers(const nlohmann::json& json, const char* name, const std::string& origin) {
  const auto list = json.find(name);
  if (list == json.end() || !list->is_array() ||
      !std::ranges::all_of(*list, [](const auto& value) { return value.is_number(); }))
    throw DataError(origin + ": '" + name + "' is missing or not a list of numbers; the file is damaged");
  return list->get<std::vector<double>>();
}

nlohmann::json shards_json(const std::vector<ShardRecord>& shards) {
  nlohmann::json json = nlohmann::json::array();
  for (const ShardRecord& shard : shards)
    json.push_back({{"name", shard.name},
                    {"tokens", shard.tokens},
                    {"xxh3_64_of_samples", shard.samples},
                    {"sha256", shard.sha256}});
  return json;
}

std::vector<ShardRecord> shards_of(const nlohmann::json& json, const std::string& origin) {
  std::vector<ShardRecord> shards;
  for (const nlohmann::json& shard : json)
    shards.push_back({member<std::string>(shard, "name", origin),
                      member<std::int64_t>(shard, "tokens", origin),
                      member<std::string>(shard, "xxh3_64_of_samples", origin),
                      member<std::string>(shard, "sha256", origin)});
  return shards;
}

DataRecord data_of(const nlohmann::json& json, const std::string& origin) {
  DataRecord data{.working_folder = member<std::string>(json, "working_folder", origin),
                  .tokenizer = member<std::string>(json, "tokenizer", origin)};
  for (const char* name : {"training", "validation"})
    if (!json.contains(name) || !json[name].is_array())
      throw DataError(origin + ": '" + name + "' is missing from 'data'; the file is damaged");
  data.training = shards_of(json["training"], origin);
  data.validation = shards_of(json["validation"], origin);
  return data;
}

// Reads the position in the data. Checkpoints of older versions do not store it; they read train.batch
// sequences a step.
void read_position(Manifest& manifest, const nlohmann::json& json, const std::string& origin) {
  RunState& state = manifest.state;
  if (json.contains("sequences")) {
    state.sequences = member<std::int64_t>(json, "sequences", origin);
    state.tokens = member<std::int64_t>(json, "tokens", origin);
    state.best_loss = member<double>(json, "best_loss", origin);
    return;
  }
  Config config;
  try {
    apply_toml(config, manifest.config, origin + ": config");
  } catch (const ConfigError& error) {
    throw DataError(error.what());
  }
  if (__builtin_mul_overflow(state.step, config.train.batch, &state.sequences) ||
      __builtin_mul_overflow(state.sequences, config.data.seq_len, &state.tokens))
    throw DataError(origin + ": 'step' is " + std::to_string(state.step) + "; the file is damaged");
}

// JSON as text, the same for the same values. Bytes that are not UTF-8 (in a folder's name) are replaced.
std::string dumped(const nlohmann::json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::json file_json(const Manifest::File& file, bool in_pieces) {
  nlohmann::json json = {{"name", file.name}, {"bytes", file.bytes}};
  if (!in_pieces) {
    json["xxh3_64"] = file.pieces.front().checksum;
    return json;
  }
  for (const FilePiece& piece : file.pieces)
    json["pieces"].push_back({{"offset", piece.offset}, {"bytes", piece.bytes}, {"xxh3_64", piece.checksum}});
  return json;
}

nlohmann::json manifest_json(const Manifest& manifest) {
  const bool in_pieces =
      std::ranges::any_of(manifest.files, [](const auto& file) { return file.pieces.size() != 1; });
  nlohmann::json files = nlohmann::json::array();
  for (const auto& file : manifest.files) files.push_back(file_json(file, in_pieces));
  return {{"format", in_pieces ? format_of_pieces : format_of_files},
          {"step", manifest.state.step},
          {"sequences", manifest.state.sequences},
          {"tokens", manifest.state.tokens},
          {"updates", manifest.state.updates},
          {"consecutive_skips", manifest.state.consecutive_skips},
          {"skipped_updates", manifest.state.skipped_updates},
          {"seconds", manifest.state.seconds},
          {"spike_window", manifest.state.spike_window},
          {"loss_limit", manifest.state.loss_limit},
          {"grad_norm_limit", manifest.state.grad_norm_limit},
          {"loss", manifest.state.loss},
          {"val_loss", manifest.state.validation_loss},
          {"best_loss", manifest.state.best_loss},
          {"latest_losses", manifest.state.latest_losses},
          {"precision", manifest.state.precision},
          {"config", manifest.config},
          {"data",
           {{"working_folder", manifest.data.working_folder},
            {"tokenizer", manifest.data.tokenizer},
            {"training", shards_json(manifest.data.training)},
            {"validation", shards_json(manifest.data.validation)}}},
          {"files", files}};
}

// The JSON object of a manifest whose format and checksum are right, without the checksum.
nlohmann::json checked_manifest(const std::string& text, const std::string& origin) {
  nlohmann::json json = parsed_json(text);
  if (!json.is_object()) throw DataError(origin + ": not a JSON object; the file is damaged or cut short");
  const nlohmann::json format = json.value("format", nlohmann::json());
  if (format != format_of_files && format != format_of_pieces)
    throw DataError(origin + ": format " + format.dump() + ", this program reads the formats 1 and 2");
  const std::string checksum = member<std::string>(json, "xxh3_64", origin);
  json.erase("xxh3_64");
  if (checksum_of(dumped(json)) != checksum)
    throw DataError(origin + ": its checksum does not match; the file is damaged");
  return json;
}

void read_state(RunState& state, const nlohmann::json& json, const std::string& origin) {
  state.step = member<std::int64_t>(json, "step", origin);
  state.updates = member<std::int64_t>(json, "updates", origin);
  state.consecutive_skips = member<std::int64_t>(json, "consecutive_skips", origin);
  state.skipped_updates = member<std::int64_t>(json, "skipped_updates", origin);
  state.seconds = member<double>(json, "seconds", origin);
  state.spike_window = numbers(json, "spike_window", origin);
  if (json.contains("loss_limit")) {
    state.loss_limit = member<double>(json, "loss_limit", origin);
    state.grad_norm_limit = member<double>(json, "grad_norm_limit", origin);
  }
  if (json.contains("latest_losses")) state.latest_losses = numbers(json, "latest_losses", origin);
  if (json.contains("precision")) state.precision = member<std::string>(json, "precision", origin);
  state.loss = member<double>(json, "loss", origin);
  state.validation_loss = member<double>(json, "val_loss", origin);
}

// The pieces of a file in format 2.
std::vector<FilePiece> pieces_of(const nlohmann::json& file, const std::string& name, std::uint64_t bytes,
                                 const std::string& origin) {
  const auto list = file.find("pieces");
  if (list == file.end() || !list->is_array())
    throw DataError(origin + ": '" + name + "' has no list of 'pieces'; the file is damaged");
  std::vector<FilePiece> pieces;
  std::uint64_t end = 0;
  for (const nlohmann::json& piece : *list) {
    pieces.push_back({member<std::uint64_t>(piece, "offset", origin),
                      member<std::uint64_t>(piece, "bytes", origin),
                      member<std::string>(piece, "xxh3_64", origin)});
    if (pieces.back().offset != end || pieces.back().bytes == 0)
      throw DataError(origin + ": '" + name + "': a piece of " + std::to_string(pieces.back().bytes) +
                      " bytes at " + std::to_string(pieces.back().offset) + ", expected one at " +
                      std::to_string(end) + "; the file is damaged");
    end += pieces.back().bytes;
  }
  if (end != bytes || pieces.empty())
    throw DataError(origin + ": '" + name + "': the pieces have " + std::to_string(end) +
                    " bytes together, the file " + std::to_string(bytes) + "; the file is damaged");
  return pieces;
}

void read_files(Manifest& manifest, const nlohmann::json& json, const std::string& origin) {
  if (!json.contains("files") || !json["files"].is_array())
    throw DataError(origin + ": 'files' is missing; the file is damaged");
  for (const nlohmann::json& json_file : json["files"]) {
    Manifest::File file{member<std::string>(json_file, "name", origin),
                        member<std::uint64_t>(json_file, "bytes", origin)};
    if (file.name.find('/') != std::string::npos)
      throw DataError(origin + ": '" + file.name + "' is not a plain file name");
    if (json["format"] == format_of_pieces)
      file.pieces = pieces_of(json_file, file.name, file.bytes, origin);
    else
      file.pieces = {{0, file.bytes, member<std::string>(json_file, "xxh3_64", origin)}};
    manifest.files.push_back(std::move(file));
  }
}
}  // namespace

std::string manifest_text(const Manifest& manifest) {
  nlohmann::json json = manifest_json(manifest);
  json["xxh3_64"] = checksum_of(dumped(json));  // checksum of all other members
  return dumped(json, 2) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& origin) {
  const nlohmann::json json = checked_manifest(text, origin);
  Manifest manifest;
  manifest.config = member<std::string>(json, "config", origin);
  read_state(manifest.state, json, origin);
  read_position(manifest, json, origin);
  if (json.contains("data")) manifest.data = data_of(json["data"], origin);
  read_files(manifest, json, origin);
  return manifest;
}

}  // namespace goat
