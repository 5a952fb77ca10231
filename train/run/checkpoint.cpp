#include "train/run/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/data_error.h"
#include "data/parsed_json.h"
#include "train/files/files.h"
#include "train/files/safetensors.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr int manifest_format = 1;
constexpr const char* model_file = "model.safetensors";
constexpr const char* optimizer_file = "optimizer.safetensors";
constexpr const char* manifest_file = "state.json";
const std::string replaced_suffix = ".old";

std::string step_name(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08lld", static_cast<long long>(step));
  return name;
}

// The step in a folder name made by step_name, or -1 for any other name.
std::int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with("step_") || name.size() < 13 || name.size() > 23) return -1;
  if (!std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; })) return -1;
  const std::int64_t step = std::stoll(name.substr(5));
  return step_name(step) == name ? step : -1;
}

// A folder left by a program that was killed while it saved or removed a checkpoint.
bool is_leftover(const fs::path& folder) { return folder.filename().string().starts_with(".step_"); }

std::vector<SafetensorsEntry> entries_of(const ParameterSet& parameters,
                                         const std::vector<std::string>& prefixes) {
  std::vector<SafetensorsEntry> entries;
  for (const std::string& prefix : prefixes)
    for (const StoredTensor& tensor : parameters.stored())
      entries.push_back({prefix + tensor.name, tensor.shape});
  return entries;
}

// Writes the stored tensors of each of `kinds` (weights, or Adam's m and v) to one file.
Manifest::File write_tensors(const fs::path& path, const std::vector<std::string>& prefixes,
                             const std::vector<ParameterSet::Kind>& kinds, std::int64_t step, Device& device,
                             const ParameterSet& parameters) {
  FileWriter file(path);
  const std::size_t count = parameters.stored().size();
  write_safetensors(
      file, entries_of(parameters, prefixes), {{"format", "pt"}, {"step", std::to_string(step)}},
      [&](std::size_t i) {
        parameters.read_pieces(
            device, parameters.stored()[i % count], kinds[i / count],
            [&](std::int64_t, std::span<const float> elements) {
              file.write({reinterpret_cast<const char*>(elements.data()), elements.size_bytes()});
            });
      });
  file.commit();
  return {path.filename().string(), file.bytes(), file.checksum()};
}

void load_tensors(const fs::path& path, const std::string& prefix, ParameterSet::Kind kind, Device& device,
                  const ParameterSet& parameters, std::size_t tensors) {
  SafetensorsReader file(path);
  if (file.entries().size() != tensors)
    throw DataError(path.string() + ": holds " + std::to_string(file.entries().size()) +
                    " tensors where this model has " + std::to_string(tensors) +
                    "; is it another model's checkpoint?");
  for (const StoredTensor& tensor : parameters.stored()) {
    const SafetensorsEntry& entry = file.find(prefix + tensor.name, tensor.shape);
    parameters.write_pieces(device, tensor, kind, [&](std::int64_t first, std::span<float> elements) {
      file.read(entry, first, elements);
    });
  }
}

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

nlohmann::json manifest_json(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::array();
  for (const auto& file : manifest.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_64", file.checksum}});
  return {{"format", manifest_format},
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
  if (json.value("format", nlohmann::json()) != manifest_format)
    throw DataError(origin + ": format " + json.value("format", nlohmann::json()).dump() +
                    ", this program reads format " + std::to_string(manifest_format));
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
  const auto window = json.find("spike_window");
  if (window == json.end() || !window->is_array() ||
      !std::ranges::all_of(*window, [](const auto& value) { return value.is_number(); }))
    throw DataError(origin + ": 'spike_window' is missing or not a list of numbers; the file is damaged");
  state.spike_window = window->get<std::vector<double>>();
  if (json.contains("loss_limit")) {
    state.loss_limit = member<double>(json, "loss_limit", origin);
    state.grad_norm_limit = member<double>(json, "grad_norm_limit", origin);
  }
  if (json.contains("precision")) state.precision = member<std::string>(json, "precision", origin);
  state.loss = member<double>(json, "loss", origin);
  state.validation_loss = member<double>(json, "val_loss", origin);
}

void read_files(Manifest& manifest, const nlohmann::json& json, const std::string& origin) {
  if (!json.contains("files") || !json["files"].is_array())
    throw DataError(origin + ": 'files' is missing; the file is damaged");
  for (const nlohmann::json& file : json["files"]) {
    manifest.files.push_back({member<std::string>(file, "name", origin),
                              member<std::uint64_t>(file, "bytes", origin),
                              member<std::string>(file, "xxh3_64", origin)});
    if (manifest.files.back().name.find('/') != std::string::npos)
      throw DataError(origin + ": '" + manifest.files.back().name + "' is not a plain file name");
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

Manifest verify_checkpoint(const fs::path& folder, Needed needed) {
  const fs::path path = folder / manifest_file;
  if (!fs::exists(path))
    throw DataError(folder.string() + ": no " + manifest_file + ": not a complete checkpoint");
  std::string text;
  try {
    text = read_small_file(path);
  } catch (const std::runtime_error& error) {
    throw DataError(error.what());
  }
  const Manifest manifest = parse_manifest(text, path.string());
  for (const auto& file : manifest.files) {
    if (needed == Needed::model && file.name != model_file) continue;
    const fs::path file_path = folder / file.name;
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(file_path, error);
    if (error) throw DataError(file_path.string() + ": listed in " + manifest_file + " but missing");
    if (bytes != file.bytes)
      throw DataError(file_path.string() + ": " + std::to_string(bytes) + " bytes, expected " +
                      std::to_string(file.bytes));
    if (checksum_of_file(file_path) != file.checksum)
      throw DataError(file_path.string() + ": its checksum does not match state.json; the file is damaged");
  }
  return manifest;
}

std::vector<fs::path> checkpoint_folders(const fs::path& run) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error))
    if (entry.is_directory() && step_of(entry.path()) >= 0) folders.push_back(entry.path());
  std::ranges::sort(folders, std::greater{}, step_of);
  return folders;
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& run, Needed needed,
                                                 const std::function<void(const std::string&)>& warn) {
  std::vector<fs::path> damaged;
  for (const fs::path& folder : checkpoint_folders(run)) {
    try {
      return FoundCheckpoint{folder, verify_checkpoint(folder, needed), damaged};
    } catch (const std::runtime_error& error) {
      damaged.push_back(folder);
      warn(std::string(error.what()) + "; trying the checkpoint before it");
    }
  }
  return std::nullopt;
}

fs::path save_checkpoint(const fs::path& run, const Config& config, const RunState& state,
                         const DataRecord& data, Device& device, const ParameterSet& parameters) {
  // `replaced` keeps an older checkpoint of the same step (before a resume) until the new one is in place.
  const fs::path folder = run / "checkpoints" / step_name(state.step),
                 unfinished = run / "checkpoints" / ("." + step_name(state.step)),
                 replaced = unfinished.string() + replaced_suffix;
  std::error_code ignored;
  fs::remove_all(unfinished, ignored);
  try {
    fs::create_directories(unfinished);
    Manifest manifest{state, to_toml(config), data, {}};
    using Kind = ParameterSet::Kind;
    manifest.files.push_back(
        write_tensors(unfinished / model_file, {""}, {Kind::value}, state.step, device, parameters));
    manifest.files.push_back(write_tensors(unfinished / optimizer_file, {"m.", "v."}, {Kind::m, Kind::v},
                                           state.step, device, parameters));
    write_file_atomically(unfinished / manifest_file, manifest_text(manifest));
    if (fs::exists(folder)) fs::rename(folder, replaced);
    fs::rename(unfinished, folder);
    fs::remove_all(replaced, ignored);
  } catch (...) {
    fs::remove_all(unfinished, ignored);
    if (fs::exists(replaced) && !fs::exists(folder)) fs::rename(replaced, folder, ignored);
    throw;
  }
  sync_folder(folder.parent_path());
  return folder;
}

void load_model(const fs::path& folder, Device& device, const ParameterSet& parameters) {
  load_tensors(folder / model_file, "", ParameterSet::Kind::value, device, parameters,
               parameters.stored().size());
}

void load_optimizer(const fs::path& folder, Device& device, const ParameterSet& parameters) {
  load_tensors(folder / optimizer_file, "m.", ParameterSet::Kind::m, device, parameters,
               2 * parameters.stored().size());
  load_tensors(folder / optimizer_file, "v.", ParameterSet::Kind::v, device, parameters,
               2 * parameters.stored().size());
}

void remove_leftovers(const fs::path& run) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error))
    if (is_leftover(entry.path())) leftovers.push_back(entry.path());
  for (const fs::path& path : leftovers) {
    const std::string name = path.filename().string();
    if (!name.ends_with(replaced_suffix)) continue;
    // A save was killed between its two renames: put the checkpoint back that it was about to replace.
    const fs::path folder = path.parent_path() / name.substr(1, name.size() - 1 - replaced_suffix.size());
    if (!fs::exists(folder, error)) fs::rename(path, folder, error);
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

void remove_old_checkpoints(const fs::path& run, std::int64_t keep, std::int64_t milestone,
                            const fs::path& newest, const std::vector<fs::path>& damaged) {
  remove_leftovers(run);
  if (keep == 0) return;
  std::error_code error;
  std::int64_t newer = 0;
  for (const fs::path& folder : checkpoint_folders(run)) {
    if (step_of(folder) > step_of(newest)) continue;  // damaged: a resume would have used it
    if (!fs::exists(folder / manifest_file, error)) continue;
    if (folder != newest && std::ranges::count(damaged, folder) > 0) continue;
    const bool is_recent = newer++ < keep;
    const bool is_milestone = milestone > 0 && step_of(folder) % milestone == 0;
    if (is_recent || is_milestone) continue;
    // The folder is renamed first, so that no step_* folder is ever half removed.
    const fs::path hidden = folder.parent_path() / ("." + folder.filename().string());
    fs::rename(folder, hidden, error);
    if (!error) fs::remove_all(hidden, error);
  }
}

}  // namespace goat
