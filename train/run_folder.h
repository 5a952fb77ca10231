// RunFolder: runs/NAME with config.toml, metrics.jsonl, summary.json, checkpoints/ and figures/.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "train/config.h"
#include "train/files.h"
#include "train/parameters.h"

namespace goat {

class RunFolder {
 public:
  // Makes the folder and writes config.toml. Throws ConfigError if `path` already holds a run and `overwrite` is false (with it, that run's files are
  // removed), or if it holds anything that is not a run.
  RunFolder(const std::filesystem::path& path, const Config& config, bool overwrite);

  const std::filesystem::path& path() const { return path_; }
  void log_metrics(const nlohmann::json& line) { metrics_.write(to_line(line)); }
  void write_summary(const nlohmann::json& summary) const;
  // checkpoints/step_00000800/model.safetensors; returns its path.
  std::filesystem::path save_model(Device& device, const ParameterSet& parameters, std::int64_t step) const;

 private:
  static std::filesystem::path prepare(const std::filesystem::path& path, bool overwrite);
  static std::string to_line(const nlohmann::json& line);

  std::filesystem::path path_;
  LineLog metrics_;
};

}  // namespace goat
