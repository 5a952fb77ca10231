#include "train/run/shared_run.h"

#include <cstdio>
#include <string>

#include "data/data_error.h"
#include "train/files/file_pieces.h"
#include "train/replicas/on_all_ranks.h"
#include "train/run/checkpoint.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
std::string full_name(const fs::path& path) { return fs::absolute(path).lexically_normal().string(); }

// Throws ConfigError unless the lock in `path` is that of rank 0, which calls the folder `name_there`.
void require_same_folder(const fs::path& path, const std::string& name_there, const std::string& nonce,
                         const RankGroup& group) {
  const std::string here = full_name(path);
  const fs::path lock = fs::path(here) / RunLock::file_name;
  if (await_file(lock, [&] { return RunLock::nonce_in(path) == nonce; })) return;
  if (group.rank() == 0)
    throw ConfigError(lock.string() + " does not hold what was written to it; is the disk full?");
  throw ConfigError("the run folder " + name_there + " of rank 0 (host " + group.peers()[0].host +
                    ") is not there on host " + group.peers()[static_cast<std::size_t>(group.rank())].host +
                    (here == name_there ? "" : " as " + here) +
                    ": it must be on a file system that all hosts share");
}

std::optional<FoundCheckpoint> checkpoint_to_resume(const fs::path& run, RankGroup& group) {
  auto found = newest_checkpoint(
      run, Needed::everything,
      [](const std::string& reason) { std::fprintf(stderr, "warning: %s\n", reason.c_str()); }, group);
  if (found) return found;
  on_rank_0(group, "a run without checkpoints", [&] {
    if (!checkpoint_folders(run).empty())
      throw DataError("--resume: none of the checkpoints in " + (run / "checkpoints").string() +
                      " can be used; give --overwrite to begin again");
    std::fprintf(stderr, "note: no checkpoint in %s yet; the run starts from its beginning\n", run.c_str());
    return std::string();
  });
  return std::nullopt;
}
}  // namespace

SharedRun::SharedRun(const fs::path& path, ExistingRun existing, RankGroup& group) : path_(path) {
  const std::string told = on_rank_0(group, "the run folder", [&] {
    folder_.emplace(path, existing);
    return folder_->nonce() + " " + full_name(path);
  });
  if (group.size() > 1)
    on_all_ranks(group, "a run folder that all ranks see", [&] {
      const std::size_t space = told.find(' ');
      require_same_folder(path, told.substr(space + 1), told.substr(0, space), group);
      return std::string();
    });
  if (existing == ExistingRun::resume) resumed_ = checkpoint_to_resume(path, group);
  if (folder_) folder_->resume_from(resumed_);
}

}  // namespace goat
