// The config of a run: what the command line says, completed by what the ranks and their memory decide.
#pragma once

#include <filesystem>

#include "kernels/device.h"
#include "train/commands/command_line.h"
#include "train/config/config.h"
#include "train/replicas/ranks.h"
#include "train/training/memory_fit.h"

namespace goat {

std::filesystem::path run_folder(const TrainOptions& options);

// The config of the command line; where it names none, that of the run which it resumes.
Config chosen_config(const TrainOptions& options, const ConfigNotes& note);
// The same, where a run that goes on by its own config may choose its micro-batch and leaves again.
Config config_to_complete(const TrainOptions& options, const ConfigNotes& note);

// `config` with the micro-batch and the leaves of a run by these ranks, which rank 0 chooses. A run that goes
// on keeps its micro-batch while it fits, and its leaves while the ranks can share them.
MicroBatchChoice config_of_ranks(const Config& config, const TrainOptions& options, const Device& device,
                                 Ranks& ranks);

// Throws the ConfigError that each of --ranks N would throw.
void require_config_for_ranks(const TrainOptions& options);

// config_of_ranks() for a command that only plans a run, of --ranks N on this host.
int planned_ranks(const TrainOptions& options);
MicroBatchChoice planned_config(const TrainOptions& options, const Device& device, const ConfigNotes& note);

}  // namespace goat
