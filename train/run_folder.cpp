#include "train/run_folder.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/token_source.h"
#include "train/config_keys.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr const char* metrics_file = "metrics.jsonl";

// Keys that decide which tensors a model has and what they mean.
bool shapes_the_model(const std::string& key) {
  static const std::vector<std::string> free = {"model.precision", "model.tf32", "model.recompute",
                                                "prior.init", "prior.sink_init_scale"};
  return (key.starts_with("model.") || key.starts_with("prior.") || key == "data.seq_len") &&
         std::ranges::count(free, key) == 0;
}

// Refuses a config that cannot continue the checkpoint's run, and tells what else differs.
void compare_configs(const Config& now, const FoundCheckpoint& checkpoint) {
  Config before, current = now;
  apply_toml(before, checkpoint.manifest.config, (checkpoint.folder / "state.json").string() + ": config");
  const std::vector<Key> old_keys = config_keys(before), new_keys = config_keys(current);
  for (std::size_t i = 0; i < new_keys.size(); ++i) {
    const std::string was = value_as_toml(old_keys[i]), is = value_as_toml(new_keys[i]);
    if (was == is) continue;
    if (shapes_the_model(new_keys[i].name))
      throw ConfigError("--resume: " + new_keys[i].name + " = " + is + ", but the run in the folder has " +
                        was + "; a run is continued with the model it began with (or give another --out)");
    std::fprintf(stderr, "note: resuming with %s = %s, which was %s\n", new_keys[i].name.c_str(), is.c_str(),
                 was.c_str());
  }
}

// Bytes of metrics.jsonl up to and with the last whole line of a step that the checkpoint holds.
std::uint64_t metrics_up_to(const fs::path& path, std::int64_t step) {
  if (!fs::exists(path)) return 0;
  std::ifstream file(path, std::ios::binary);
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() ||
        json["step"].get<std::int64_t>() > step)
      break;
    bytes += line.size() + 1;
  }
  return bytes;
}

// Whether the folder has nothing in it, or only what an interrupted first write left.
bool is_empty_but_for_partial_files(const fs::path& path) {
  return std::ranges::all_of(fs::directory_iterator(path),
                             [](const auto& entry) { return entry.path().extension() == ".partial"; });
}

bool holds_a_run(const fs::path& path) {
  if (fs::exists(path) && !fs::is_directory(path))
    throw ConfigError("--out " + path.string() + ": exists and is not a folder");
  if (!fs::exists(path) || is_empty_but_for_partial_files(path)) return false;
  if (!fs::exists(path / "config.toml"))
    throw ConfigError("--out " + path.string() +
                      ": the folder holds files but no run (no config.toml); choose another folder");
  return true;
}

std::optional<FoundCheckpoint> checkpoint_to_resume(const fs::path& run) {
  const auto found = newest_checkpoint(run, Needed::everything, [](const std::string& reason) {
    std::fprintf(stderr, "warning: %s\n", reason.c_str());
  });
  if (!found && !checkpoint_folders(run).empty())
    throw DataError("--resume: none of the checkpoints in " + (run / "checkpoints").string() +
                    " can be used; give --overwrite to begin again");
  if (!found)
    std::fprintf(stderr, "note: no checkpoint in %s yet; the run starts from its beginning\n", run.c_str());
  return found;
}
}  // namespace

RunFolder::RunFolder(const fs::path& path, const Config& config, ExistingRun existing) : path_(path) {
  if (holds_a_run(path)) {
    if (existing == ExistingRun::refuse)
      throw ConfigError(
          "--out " + path.string() +
          ": holds another run; give --resume to continue it, --overwrite to replace it, or another --out");
    if (existing == ExistingRun::overwrite) {
      for (const char* name : {metrics_file, "summary.json", "checkpoints", "figures", "analysis"})
        fs::remove_all(path / name);
    } else {
      resumed_ = checkpoint_to_resume(path);
      if (resumed_) compare_configs(config, *resumed_);
    }
  }
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw std::runtime_error("cannot create run folder " + path.string() + ": " + error.message());
  write_file_atomically(path / "config.toml", to_toml(config));  // first: it marks the folder as a run
  fs::create_directories(path / "figures");
  fs::create_directories(path / "checkpoints");
  metrics_.emplace(path / metrics_file,
                   resumed_ ? metrics_up_to(path / metrics_file, resumed_->manifest.state.step) : 0);
}

void RunFolder::log_metrics(const nlohmann::json& line) { metrics_->write(line.dump()); }

void RunFolder::write_summary(const nlohmann::json& summary) const {
  write_file_atomically(path_ / "summary.json", summary.dump(2) + "\n");
}

}  // namespace goat
