// RunFolder: runs/NAME with config.toml, metrics.jsonl, summary.json, checkpoints/ and figures/.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "train/checkpoint.h"
#include "train/config.h"
#include "train/files.h"

namespace goat {

// What to do where the folder already holds a run.
enum class ExistingRun { refuse, resume, overwrite };

class RunFolder {
 public:
  // Opens or makes the folder and writes config.toml. Throws ConfigError where the folder holds something
  // that is no run, a run and `existing` is refuse, or a run that this config cannot resume. Differences to
  // the resumed run's config that are allowed are printed. With resume and no complete checkpoint the run
  // starts again from its beginning.
  RunFolder(const std::filesystem::path& path, const Config& config, ExistingRun existing);

  const std::filesystem::path& path() const { return path_; }
  // The checkpoint to continue from; nullopt for a new run.
  const std::optional<FoundCheckpoint>& resumed() const { return resumed_; }

  void log_metrics(const nlohmann::json& line);
  void write_summary(const nlohmann::json& summary) const;

 private:
  std::filesystem::path path_;
  std::optional<FoundCheckpoint> resumed_;
  std::optional<LineLog> metrics_;
};

}  // namespace goat
