// Checkpoints: RUN/checkpoints/step_00000800/ with model.safetensors, optimizer.safetensors and state.json,
// which lists the others with their checksums.
//
// A checkpoint is written into a hidden folder, every file synced, state.json last, and the folder renamed: a
// step_* folder is whole or was damaged later, which the checksums tell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "data/shard_record.h"
#include "train/config/config.h"
#include "train/model/parameters.h"

namespace goat {

// What a run must know, besides weights and optimizer state, to go on as if it had never stopped.
struct RunState {
  std::int64_t step = 0;               // steps done
  std::int64_t sequences = 0;          // training sequences read: the position in the data
  std::int64_t tokens = 0;             // in these sequences
  std::int64_t updates = 0;            // updates applied
  std::int64_t consecutive_skips = 0;  // see StepState
  std::int64_t skipped_updates = 0;
  double seconds = 0;                  // spent training
  std::vector<double> spike_window{};  // see SpikeFilter
  double loss = nan;                   // of the latest step; not a number before the first
  double validation_loss = nan;        // the latest; not a number where there was none
  double best_loss = nan;              // see DivergenceWatch
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();
};

// The data that a run was trained on.
struct DataRecord {
  std::string working_folder;  // where the config's relative paths begin; empty: from an older version
  std::string tokenizer;       // "bytes", "gpt2"; empty where it is not known
  std::vector<ShardRecord> training{}, validation{};  // empty: generated data, or from an older version
};

struct Manifest {
  RunState state;
  std::string config;  // the run's resolved config, TOML
  DataRecord data{};
  struct File {
    std::string name;
    std::uint64_t bytes = 0;
    std::string checksum;
  };
  std::vector<File> files{};
};

// state.json as text, and back. parse_manifest checks everything it returns; throws DataError that begins
// with `origin`.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& text, const std::string& origin);

// What a checkpoint must have: everything, to train on; or the model, to look at (a folder that is passed on
// needs no optimizer state).
enum class Needed { everything, model };

// Reads state.json of a checkpoint folder and checks size and checksum of the files that are needed. Throws
// DataError.
Manifest verify_checkpoint(const std::filesystem::path& folder, Needed needed = Needed::everything);

// The step_* folders of RUN/checkpoints, newest first, whole or not.
std::vector<std::filesystem::path> checkpoint_folders(const std::filesystem::path& run);

struct FoundCheckpoint {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<std::filesystem::path> damaged{};  // newer ones
};
// The newest checkpoint that verifies; each newer one that does not is reported through `warn`. nullopt where
// there is none.
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& run, Needed needed,
                                                 const std::function<void(const std::string&)>& warn);

// Writes the checkpoint of `state.step` and returns its folder; replaces one of the same step. Throws
// std::runtime_error; then nothing new is left.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const Config& config,
                                      const RunState& state, const DataRecord& data, Device& device,
                                      const ParameterSet& parameters);

void load_model(const std::filesystem::path& folder, Device& device,
                const ParameterSet& parameters);  // throws DataError
void load_optimizer(const std::filesystem::path& folder, Device& device,
                    const ParameterSet& parameters);  // throws DataError

// Removes what a program left that was killed while it saved or removed a checkpoint.
void remove_leftovers(const std::filesystem::path& run);

// Removes the oldest checkpoints beyond the newest `keep` (0: keeps all), but never one whose step is a
// multiple of `milestone` (0: none), never `newest`, and nothing that is not a checkpoint folder; those that
// are `damaged` do not count. Also leftovers.
void remove_old_checkpoints(const std::filesystem::path& run, std::int64_t keep, std::int64_t milestone,
                            const std::filesystem::path& newest,
                            const std::vector<std::filesystem::path>& damaged = {});

}  // namespace goat
