// RunFolder: runs/NAME with config.toml, metrics.jsonl, summary.json, checkpoints/ and figures/.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/files/files.h"
#include "train/run/checkpoint.h"
#include "train/run/run_lock.h"

namespace goat {

// What to do where the folder already holds a run.
enum class ExistingRun { refuse, resume, overwrite };

// What an --overwrite replaces stays here, a run folder of its own, until the new run has a checkpoint.
inline constexpr const char* replaced_run = ".replaced";

// A folder that a run is about to be trained in. Until establish() no run in it changes,
// and a start that fails leaves no trace.
class RunFolder {
 public:
  // Locks the folder, which is made where there is none, and finds the checkpoint to resume from. Throws
  // ConfigError where another process trains there, where the folder holds something that is no run, or a run
  // and `existing` is refuse; DataError where none of the checkpoints to resume from can be used. With resume
  // and no checkpoint at all the run starts from its beginning.
  RunFolder(const std::filesystem::path& path, ExistingRun existing);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The checkpoint to continue from; nullopt for a new run.
  const std::optional<FoundCheckpoint>& resumed() const { return resumed_; }

  // From here on the folder is this run's, once it has something to keep (its first step): moves a run that
  // is overwritten aside, writes config.toml and opens metrics.jsonl, less the lines after the resumed
  // checkpoint.
  void establish(const Config& config);
  bool established() const { return metrics_.has_value(); }

  // These need an established folder.
  void log_metrics(const nlohmann::json& line);
  void write_summary(const nlohmann::json& summary) const;
  void require_in_place() const;  // throws std::runtime_error where the folder has gone elsewhere
  void checkpoint_stands();       // what was moved aside is removed

 private:
  void make_folder();
  void remove_what_was_made();
  void move_old_run_aside();

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // folders that were not there before, outermost first
  std::optional<RunLock> lock_;
  bool fresh_ = false;      // there was no run
  bool overwrite_ = false;  // the run that is there goes
  std::optional<FoundCheckpoint> resumed_;
  std::optional<LineLog> metrics_;
};

// config.toml of the run in a folder, also where an --overwrite that was killed has set it aside; empty where
// there is none.
std::filesystem::path config_of_run(const std::filesystem::path& path);

// "new", or what a run folder holds, for --dry-run.
std::string describe_run_folder(const std::filesystem::path& path);

}  // namespace goat
