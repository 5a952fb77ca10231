// RunPaths: finds the files that the relative paths in a run's config mean, from any current folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace goat {

class RunPaths {
 public:
  // Searches a relative path in the current folder, then in `working_folder`, where the run was started
  // (empty: unknown), then in the folders above the run, the nearest first.
  RunPaths(const std::filesystem::path& run, const std::string& working_folder);

  // `pattern` (see files_matching) as seen from the current folder, relative to the first searched folder in
  // which a file matches. Returns `pattern` itself if no file matches.
  std::string locate(const std::string& pattern) const;

  // The searched folders, for a message: ", in the current folder, /work (where the run was started) and the
  // folders above /work/runs/a". Empty for an absolute pattern.
  std::string searched(const std::string& pattern) const;

 private:
  std::filesystem::path run_;
  std::string working_folder_;
};

}  // namespace goat
