// SharedRun: the folder of a run as its ranks share it.
#pragma once

#include <filesystem>
#include <optional>

#include "train/ranks/rank_group.h"
#include "train/run/newest_checkpoint.h"
#include "train/run/run_folder.h"

namespace goat {

// Rank 0 alone makes, locks and writes the folder. The others must see it.
class SharedRun {
 public:
  // All ranks call it together, each with its own name of the folder. Rank 0 opens the folder, the others
  // show that they see the same one, and all of them find the checkpoint to resume from. All throw the same:
  // what RunFolder throws; ConfigError, naming both hosts, if a rank does not see the folder within
  // seconds_until_seen; DataError if there are checkpoints to resume from but none can be used. With `resume`
  // and no checkpoint at all the run starts from its beginning.
  SharedRun(const std::filesystem::path& path, ExistingRun existing, RankGroup& group);
  SharedRun(const SharedRun&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The checkpoint to continue from, seen from this rank; nullopt for a new run.
  const std::optional<FoundCheckpoint>& resumed() const { return resumed_; }
  RunFolder* folder() { return folder_ ? &*folder_ : nullptr; }  // nullptr on all ranks but 0

 private:
  std::filesystem::path path_;
  std::optional<RunFolder> folder_;
  std::optional<FoundCheckpoint> resumed_;
};

}  // namespace goat
