// Which settings and data may change when a run is resumed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/config/config.h"
#include "train/config/config_keys.h"
#include "train/run/newest_checkpoint.h"

namespace goat {

// A key whose value differs from that in a checkpoint.
struct ChangedKey {
  std::string name;
  OnResume on_resume;
  std::string was, is;
};
std::vector<ChangedKey> changed_keys(const Config& now, const FoundCheckpoint& checkpoint);

// Compares a config with that of a checkpoint, key by key (Key::on_resume). Returns a note for
// each difference that the user must be told. Throws ConfigError for a difference with which the
// run cannot continue.
std::vector<std::string> compare_configs(const Config& now, const FoundCheckpoint& checkpoint);

// The checkpoint's state, from which a run with config `now` continues. Limits that rest on other settings of
// the spike filter are forgotten.
RunState state_to_continue(const Config& now, const FoundCheckpoint& checkpoint);

// The notes of compare_configs for the run in a folder, for --dry-run. Empty if there is no checkpoint.
std::vector<std::string> check_resume(const Config& now, const std::filesystem::path& run);

// The config with data.train, data.mixture and data.val as seen from the current folder (see RunPaths).
Config with_data_located(const Config& config, const std::filesystem::path& run, const DataRecord& data);

// Describes the data that a run trains on now, for its checkpoints.
DataRecord describe_data(const TokenSource& training, const TokenSource* validation);

// Keeps the working folder in which the run was first started.
void keep_working_folder(DataRecord& now, const DataRecord& before);

// Compares the data with those of a checkpoint. Returns notes. Throws DataError if data.train is the same but
// the training data have other contents, unless `allow_changed_data`.
std::vector<std::string> compare_data(const DataRecord& now, const Config& config,
                                      const FoundCheckpoint& checkpoint, bool allow_changed_data);

}  // namespace goat
