// RunFolder: runs/NAME with config.toml, metrics.jsonl, summary.json, checkpoints/ and figures/, and
// init_from.json of a run that started with another one's weights.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/config/config.h"
#include "train/files/files.h"
#include "train/run/newest_checkpoint.h"
#include "train/run/run_lock.h"

namespace goat {

// What to do if the folder already holds a run.
enum class ExistingRun { refuse, resume, overwrite };

// An --overwrite moves the old run to this subfolder, which is a run folder itself. It stays there until the
// new run has a checkpoint.
inline constexpr const char* replaced_run = ".replaced";

// What --profile writes into an output folder; it is no part of a run, and no obstacle to one.
inline constexpr const char* profile_folder = "profile";

// A folder in which a run is about to be trained. Before establish() no run in it changes, and a start that
// fails leaves no trace.
class RunFolder {
 public:
  // Makes the folder if there is none, and locks it. Throws ConfigError if another process trains there, if
  // the folder holds something that is not a run, or if it holds a run and `existing` is refuse.
  RunFolder(const std::filesystem::path& path, ExistingRun existing);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::string& nonce() const { return lock_->nonce(); }
  // To be called before establish(): the checkpoint to continue from; nullopt for a new run.
  void resume_from(std::optional<FoundCheckpoint> checkpoint) { resumed_ = std::move(checkpoint); }
  const std::optional<FoundCheckpoint>& resumed() const { return resumed_; }

  // To be called before establish(): with what a new run starts, which establish() writes to init_from.json.
  void starts_with(std::string json) { start_ = std::move(json); }

  // Makes the folder this run's; called once the run has something to keep (its first step). Moves a
  // run that is overwritten aside, writes config.toml, opens metrics.jsonl and removes its lines after
  // the resumed checkpoint.
  void establish(const Config& config);
  bool established() const { return metrics_.has_value(); }

  // These need an established folder.
  void log_metrics(const nlohmann::json& line);
  void write_summary(const nlohmann::json& summary) const;
  void require_in_place() const;  // throws std::runtime_error if the folder has been moved
  void checkpoint_stands();       // call after the first checkpoint: removes what was moved aside

 private:
  void make_folder();
  void remove_what_was_made();
  void move_old_run_aside();

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // folders that this object made, outermost first
  std::optional<RunLock> lock_;
  bool fresh_ = false;      // the folder held no run
  bool overwrite_ = false;  // the run in the folder is replaced
  std::optional<FoundCheckpoint> resumed_;
  std::string start_;  // JSON; empty: with nothing but the config
  std::optional<LineLog> metrics_;
};

// config.toml of the run in a folder, even if an --overwrite that was killed has moved it aside. Empty if
// there is none.
std::filesystem::path config_of_run(const std::filesystem::path& path);

// "new", or a description of what the folder holds, for --dry-run.
std::string describe_run_folder(const std::filesystem::path& path);

}  // namespace goat
