// Starts the ranks of a run: as copies of this process (--ranks N), or as one of those that a launcher
// started.
#pragma once

#include <exception>
#include <filesystem>
#include <optional>

#include "train/commands/command_line.h"
#include "train/config/config.h"
#include "train/replicas/ranks.h"

namespace goat {

// With --ranks N, in the process that the user started: runs the command line N times and returns the exit
// code. nullopt if this process trains itself. Throws RanksError, and ConfigError where ranks make no sense.
// Must come before any thread starts.
std::optional<int> run_copies(const CommandLine& line, int argc, char** argv);

// Whether this process is the one rank, or rank 0 of several.
bool started_as_first();

// Meets the other ranks, which must have the same program, config and command. When a rank fails, every
// process ends; rank 0 then tells how to continue the run in `folder`.
Ranks meet_ranks_of_run(const Config& config, const TrainOptions& options,
                        const std::filesystem::path& folder);

// The program's exit code after an exception: 2 for ConfigError, 3 for DataError, that of a RanksError, else
// 1.
int exit_code_of(const std::exception& error);

// Ends all ranks, because this one has met an error that the others have not.
void end_all_ranks(RankGroup& group, const std::exception& error);

}  // namespace goat
