#include "train/run_folder.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "train/safetensors.h"

namespace goat {

namespace fs = std::filesystem;

fs::path RunFolder::prepare(const fs::path& path, bool overwrite) {
  std::error_code error;
  if (fs::exists(path) && !fs::is_directory(path)) throw ConfigError("--out " + path.string() + ": exists and is not a folder");
  if (fs::exists(path) && !fs::is_empty(path)) {
    if (!fs::exists(path / "config.toml"))
      throw ConfigError("--out " + path.string() + ": the folder holds files but no run (no config.toml); choose another folder");
    if (!overwrite) throw ConfigError("--out " + path.string() + ": holds another run; give --overwrite to replace it, or another --out");
    for (const char* name : {"metrics.jsonl", "summary.json", "checkpoints", "figures", "config.toml"}) fs::remove_all(path / name);
  }
  fs::create_directories(path / "figures", error);
  if (!error) fs::create_directories(path / "checkpoints", error);
  if (error) throw std::runtime_error("cannot create run folder " + path.string() + ": " + error.message());
  return path;
}

RunFolder::RunFolder(const fs::path& path, const Config& config, bool overwrite) : path_(prepare(path, overwrite)), metrics_(path_ / "metrics.jsonl") {
  write_file_atomically(path_ / "config.toml", {to_toml(config)});
}

std::string RunFolder::to_line(const nlohmann::json& line) { return line.dump(); }

void RunFolder::write_summary(const nlohmann::json& summary) const { write_file_atomically(path_ / "summary.json", {summary.dump(2), "\n"}); }

fs::path RunFolder::save_model(Device& device, const ParameterSet& parameters, std::int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08lld", static_cast<long long>(step));
  const fs::path folder = path_ / "checkpoints" / name;
  fs::create_directories(folder);
  std::vector<SafeTensor> tensors;
  for (const StoredTensor& tensor : parameters.stored()) tensors.push_back({tensor.name, tensor.shape, parameters.read(device, tensor)});
  write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}, {"step", std::to_string(step)}});
  return folder / "model.safetensors";
}

}  // namespace goat
