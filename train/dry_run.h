// `--dry-run`: what a run would take and do, without doing it.
#pragma once

#include "train/config.h"

namespace goat {

// Prints the resolved config, parameter counts, FLOPs a token, memory by category (what the trainer would
// allocate), steps and tokens, and opens the data. Throws DataError where the data cannot be used.
void dry_run(const Config& config);

}  // namespace goat
