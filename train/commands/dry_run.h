// `--dry-run`: what a run would take and do, without doing it.
#pragma once

#include <filesystem>

#include "kernels/device.h"
#include "train/config/config.h"

namespace goat {

// Prints parameter counts, FLOPs a token, memory by category (what the trainer would allocate) and whether
// the device has it, steps, tokens and epochs, what is in the output folder, and the data, which are opened.
// Throws DataError where they cannot be used.
void dry_run(const Config& config, const std::filesystem::path& run_folder, const Device& device);

}  // namespace goat
