// Which of a run's checkpoints are whole.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/ranks/rank_group.h"
#include "train/run/manifest.h"

namespace goat {

// What a checkpoint must contain: everything, for training; or only the model, for looking at it. A folder
// that is passed on needs no optimizer state.
enum class Needed { everything, model };

// Reads state.json of a checkpoint folder and checks the size of each file that is needed and the checksum of
// each of its pieces. Throws DataError. Ranks that call it together share the work and throw the same;
// whichever found the damage is named.
Manifest verify_checkpoint(const std::filesystem::path& folder, Needed needed = Needed::everything);
Manifest verify_checkpoint(const std::filesystem::path& folder, Needed needed, RankGroup& group);

struct FoundCheckpoint {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<std::filesystem::path> damaged{};  // newer checkpoints that cannot be used
};
// The newest checkpoint that passes verification. Each newer one that does not is reported through `warn`.
// nullopt if no checkpoint passes. Ranks that call it together come to the same result; rank 0 lists the
// folders and reports.
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& run, Needed needed,
                                                 const std::function<void(const std::string&)>& warn);
std::optional<FoundCheckpoint> newest_checkpoint(const std::filesystem::path& run, Needed needed,
                                                 const std::function<void(const std::string&)>& warn,
                                                 RankGroup& group);

}  // namespace goat
