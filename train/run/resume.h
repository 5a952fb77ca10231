// What a run may change when it is resumed: settings and data.
#pragma once

#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/config/config.h"
#include "train/run/checkpoint.h"

namespace goat {

// Compares a config with the one a checkpoint was trained with, key by key (Key::on_resume). Returns a note
// for each difference that is to be reported. Throws ConfigError for one that a run cannot go on with.
std::vector<std::string> compare_configs(const Config& now, const FoundCheckpoint& checkpoint);

// What compare_configs says of the run in a folder, for --dry-run; nothing where there is no checkpoint.
std::vector<std::string> check_resume(const Config& now, const std::filesystem::path& run);

// The config with data.train and data.val as they are to be used from the current folder (see RunPaths).
Config with_data_located(const Config& config, const std::filesystem::path& run, const DataRecord& data);

// The data that a run trains on now, for its checkpoints.
DataRecord describe_data(const TokenSource& training, const TokenSource* validation);

// A resumed run remembers where it was first started.
void keep_working_folder(DataRecord& now, const DataRecord& before);

// Compares the data with those a checkpoint was trained on. Returns notes. Throws DataError where the
// training data have other contents although data.train is the same, unless `allow_changed_data`.
std::vector<std::string> compare_data(const DataRecord& now, const Config& config,
                                      const FoundCheckpoint& checkpoint, bool allow_changed_data);

}  // namespace goat
