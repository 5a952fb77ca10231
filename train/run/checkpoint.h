// Checkpoints: RUN/checkpoints/step_00000800/ with model.safetensors, optimizer.safetensors and state.json.
// state.json lists the other files with their checksums.
//
// A checkpoint is written to a hidden folder: every file is synced, and state.json is written last.
// Then the folder is renamed. Therefore a step_* folder is complete unless it was damaged later, which
// the checksums show.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "train/config/config.h"
#include "train/memory/parameters.h"
#include "train/ranks/rank_group.h"
#include "train/run/manifest.h"

namespace goat {

inline constexpr const char* model_file = "model.safetensors";
inline constexpr const char* manifest_file = "state.json";

// The step_* folders of RUN/checkpoints, newest first, complete or not.
std::vector<std::filesystem::path> checkpoint_folders(const std::filesystem::path& run);

// Writes the checkpoint of `state.step` and returns its folder. Replaces an existing checkpoint of the same
// step. All ranks call it together, each with its view of the run folder. Each writes its pieces of the
// parameters into the same two files, which are byte for byte those of a single rank. Where any of them
// fails, all throw std::runtime_error with the same text, which names it (see on_all_ranks), and no new files
// are left. It may take long: see Phase.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const Config& config,
                                      const RunState& state, const DataRecord& data, Device& device,
                                      const ParameterSet& parameters, RankGroup& group);

// These read what this rank owns. They throw DataError if a file does not fit the parameters.
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
