// `--dry-run`: reports what a run would need and do, without training.
#pragma once

#include <filesystem>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/profile/run_time.h"
#include "train/training/memory_fit.h"

namespace goat {

// Prints the number of parameters, FLOPs per token, memory by category (as the trainer would allocate it) and
// whether the device has enough, steps, tokens and epochs, the time that the steps will take and by which
// speed, and the contents of the output folder. Opens the data and describes them. Throws DataError if they
// cannot be used. Memory is that of each of `ranks` ranks, which share this host.
void dry_run(const MicroBatchChoice& choice, int ranks, const std::filesystem::path& run_folder,
             const Device& device, const SpeedOptions& speed);

}  // namespace goat
