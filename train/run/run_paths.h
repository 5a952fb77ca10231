// RunPaths: where the relative paths in a run's config lead, from whatever folder the run is looked at.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace goat {

class RunPaths {
 public:
  // A relative path is looked for in the current folder, then in `working_folder`, where the run was started
  // (empty: not known), then in the folders above the run, the nearest first.
  RunPaths(const std::filesystem::path& run, const std::string& working_folder);

  // `pattern` (see files_matching) as it is to be used from the current folder: that of the first folder
  // where a file matches; itself where none does.
  std::string locate(const std::string& pattern) const;

  // Where `pattern` was looked for, for a message: ", in the current folder, /work (where the run was
  // started) and the folders above /work/runs/a"; empty for an absolute one.
  std::string searched(const std::string& pattern) const;

 private:
  std::filesystem::path run_;
  std::string working_folder_;
};

}  // namespace goat
