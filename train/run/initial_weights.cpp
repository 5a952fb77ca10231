#include "train/run/initial_weights.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "data/data_error.h"
#include "train/config/counted.h"
#include "train/files/safetensors.h"
#include "train/run/checkpoint.h"
#include "train/run/resume.h"

namespace goat {

namespace {
// A row for each position. A model of another length has the first rows of the longer one.
constexpr const char* rows_of_positions = "position_embedding.weight";

using Shape = std::vector<std::int64_t>;

bool differs_in_rows_alone(const Shape& one, const Shape& other) {
  return one.size() == other.size() && !one.empty() &&
         std::equal(one.begin() + 1, one.end(), other.begin() + 1);
}

// The rows beyond those of the file keep what they have.
void load_common_rows(SafetensorsReader& file, Device& device, const ParameterSet& parameters,
                      const StoredTensor& tensor) {
  const auto entry = std::ranges::find(file.entries(), tensor.name, &SafetensorsEntry::name);
  if (entry == file.entries().end() || !differs_in_rows_alone(entry->shape, tensor.shape))
    throw DataError("--init-from: " + tensor.name + " has changed while it was read");
  const auto there = static_cast<std::int64_t>((entry->end - entry->begin) / sizeof(float));
  std::vector<std::vector<float>> runs;
  parameters.read_pieces(device, tensor, ParameterSet::Kind::value,
                         [&](std::int64_t, std::span<const float> elements) {
                           runs.emplace_back(elements.begin(), elements.end());
                         });
  auto run = runs.begin();
  parameters.write_pieces(
      device, tensor, ParameterSet::Kind::value, [&](std::int64_t first, std::span<float> elements) {
        std::ranges::copy(*run++, elements.begin());
        const std::int64_t common = std::clamp<std::int64_t>(there - first, 0, std::ssize(elements));
        file.read(*entry, first, elements.first(static_cast<std::size_t>(common)));
      });
}

// The names, shortened where there are many.
std::string names_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

// The keys of the model, and its training length, that differ from the checkpoint's.
void note_changed_keys(InitialWeights& weights, const Config& config) {
  const bool has_slope =
      std::ranges::any_of(weights.loaded, [](const std::string& name) { return name.ends_with(".slope"); });
  for (const auto& [name, on_resume, was, is] : changed_keys(config, weights.from)) {
    if (on_resume.kind != OnResume::refused) continue;
    const std::string change = name + " = " + is + ", which was " + was;
    if (name == "model.heads" || name == "model.kv_heads")
      throw ConfigError("--init-from: " + change + ": the rows of q, k and v would be cut into other heads");
    if (name == "prior.recency" && has_slope)
      throw ConfigError("--init-from: " + change + ": the stored slopes would mean others");
    weights.changed.push_back(change);
  }
}
}  // namespace

std::vector<std::string> InitialWeights::lines() const {
  std::vector<std::string> text = {counted(std::ssize(loaded), "tensor") + " as a whole"};
  const auto add = [&](const std::vector<std::string>& names, const std::string& what) {
    if (!names.empty()) text.push_back(what + ": " + names_of(names));
  };
  add(partly, "the positions that both models have");
  add(started, counted(std::ssize(started), "tensor") + " not there, started as configured");
  add(unused, counted(std::ssize(unused), "tensor") + " there, not in this model");
  for (const std::string& change : changed) text.push_back("computes with " + change);
  return text;
}

std::string InitialWeights::json() const {
  const nlohmann::json record = {
      {"checkpoint", std::filesystem::absolute(from.folder).lexically_normal().string()},
      {"step", from.manifest.state.step},
      {"loaded", loaded},
      {"loaded_in_part", partly},
      {"started_as_configured", started},
      {"unused", unused},
      {"changed_keys", changed}};
  return record.dump(2) + "\n";
}

InitialWeights match_weights(const FoundCheckpoint& from, const Config& config,
                             const ParameterSet& parameters) {
  const std::filesystem::path path = from.folder / model_file;
  std::map<std::string, Shape> there;
  const SafetensorsReader file(path);
  for (const SafetensorsEntry& entry : file.entries()) there[entry.name] = entry.shape;
  InitialWeights weights{
      .from = from, .loaded = {}, .partly = {}, .started = {}, .unused = {}, .changed = {}};
  for (const StoredTensor& tensor : parameters.stored()) {
    const auto entry = there.find(tensor.name);
    if (entry == there.end()) {
      weights.started.push_back(tensor.name);
      continue;
    }
    if (entry->second == tensor.shape)
      weights.loaded.push_back(tensor.name);
    else if (tensor.name == rows_of_positions && differs_in_rows_alone(entry->second, tensor.shape))
      weights.partly.push_back(tensor.name);
    else
      throw DataError(
          "--init-from: " + tensor.name + " is " + shape_text(entry->second) + " in " + path.string() +
          " and " + shape_text(tensor.shape) +
          " in this model; give the model of the config those sizes, or start without --init-from");
    there.erase(entry);
  }
  for (const auto& [name, shape] : there) weights.unused.push_back(name);
  if (weights.loaded.empty())
    throw DataError("--init-from: " + path.string() + " has no tensor of this model");
  note_changed_keys(weights, config);
  return weights;
}

void load_weights(const InitialWeights& weights, Device& device, const ParameterSet& parameters) {
  SafetensorsReader file(weights.from.folder / model_file);
  const auto is_in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const StoredTensor& tensor : parameters.stored()) {
    if (is_in(weights.loaded, tensor.name)) {
      const SafetensorsEntry& entry = file.find(tensor.name, tensor.shape);
      parameters.write_pieces(
          device, tensor, ParameterSet::Kind::value,
          [&](std::int64_t first, std::span<float> elements) { file.read(entry, first, elements); });
    } else if (is_in(weights.partly, tensor.name)) {
      load_common_rows(file, device, parameters, tensor);
    }
  }
}

}  // namespace goat
