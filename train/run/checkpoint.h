// Checkpoints: RUN/checkpoints/step_00000800/ with model.safetensors, optimizer.safetensors and state.json.
// state.json lists the other files with their checksums.
//
// A checkpoint is written to a hidden folder: every file is synced, and state.json is written last.
// Then the folder is renamed. Therefore a step_* folder is complete unless it was damaged later, which
// the checksums show.
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
#include "train/memory/parameters.h"

namespace goat {

// The state of a run, besides weights and optimizer state, that it needs to continue as if it
// had never stopped.
struct RunState {
  std::int64_t step = 0;               // number of steps done
  std::int64_t sequences = 0;          // number of training sequences read = position in the data
  std::int64_t tokens = 0;             // number of tokens in these sequences
  std::int64_t updates = 0;            // number of updates applied
  std::int64_t consecutive_skips = 0;  // see StepState
  std::int64_t skipped_updates = 0;
  double seconds = 0;                  // training time
  std::vector<double> spike_window{};  // see SpikeFilter
  // Limits of the next step (StepState), from the results before the latest. NaN: to be computed from the
  // window.
  double loss_limit = nan, grad_norm_limit = nan;
  double loss = nan;             // loss of the latest step; NaN before the first
  double validation_loss = nan;  // latest validation loss; NaN if there is none
  double best_loss = nan;        // see DivergenceWatch
  std::string precision{};       // of the latest steps: "bf16", "fp32"; empty in old checkpoints
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();
};

// The data that a run was trained on.
struct DataRecord {
  std::string working_folder;  // start of the config's relative paths; empty in old checkpoints
  std::string tokenizer;       // "bytes", "gpt2"; empty if unknown
  std::vector<ShardRecord> training{}, validation{};  // empty for generated data and in old checkpoints
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

// state.json as text, and back. parse_manifest checks everything that it returns. It throws DataError; the
// message begins with `origin`.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& text, const std::string& origin);

// What a checkpoint must contain: everything, for training; or only the model, for looking at it. A folder
// that is passed on needs no optimizer state.
enum class Needed { everything, model };

// Reads state.json of a checkpoint folder and checks the size and checksum of each file that is
// needed. Throws DataError.
Manifest verify_checkpoint(const std::filesystem::path& folder, Needed needed = Needed::everything);

// The step_* folders of RUN/checkpoints, newest first, complete or not.
std::vector<std::filesystem::path> checkpoint_folders(const std::filesystem::path& run);

struct FoundCheckpoint {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<std::filesystem::path> damaged{};  // newer checkpoints that cannot be used
};
// The newest checkpoint that passes verification. Each newer one that does not is reported through `warn`.
// nullopt if no checkpoint passes.
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& run, Needed needed,
                                                 const std::function<void(const std::string&)>& warn);

// Writes the checkpoint of `state.step` and returns its folder. Replaces an existing checkpoint of the same
// step. Throws std::runtime_error; in that case it leaves no new files.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const Config& config,
                                      const RunState& state, const DataRecord& data, Device& device,
                                      const ParameterSet& parameters);

// These throw DataError if a file does not fit the parameters.
void load_model(const std::filesystem::path& folder, Device& device, const ParameterSet& parameters);
void load_optimizer(const std::filesystem::path& folder, Device& device, const ParameterSet& parameters);

// Removes what a program left behind that was killed while it saved or removed a checkpoint.
void remove_leftovers(const std::filesystem::path& run);

// Removes leftovers and all checkpoints except the newest `keep` (0: keeps all). It never removes `newest`, a
// checkpoint whose step is a multiple of `milestone` (0: none), or a folder that is not a checkpoint. The
// `damaged` ones are not counted and not removed.
void remove_old_checkpoints(const std::filesystem::path& run, std::int64_t keep, std::int64_t milestone,
                            const std::filesystem::path& newest,
                            const std::vector<std::filesystem::path>& damaged = {});

}  // namespace goat
