#include "train/run/run_paths.h"

#include "data/shard_source.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
// Escapes the special characters of `folder`, so that it matches only itself in a glob pattern.
std::string escaped(const std::string& folder) {
  std::string pattern;
  for (const char c : folder) {
    if (std::string("*?[]\\").find(c) != std::string::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

bool is_absolute(const std::string& pattern) { return pattern.starts_with('/') || pattern.starts_with('~'); }
}  // namespace

RunPaths::RunPaths(const fs::path& run, const std::string& working_folder)
    : run_(fs::absolute(run).lexically_normal()), working_folder_(working_folder) {}

std::string RunPaths::locate(const std::string& pattern) const {
  if (pattern.empty() || is_absolute(pattern) || !files_matching(pattern).empty()) return pattern;
  std::vector<fs::path> folders;
  if (!working_folder_.empty()) folders.push_back(working_folder_);
  for (fs::path folder = run_; folder != folder.parent_path(); folder = folder.parent_path())
    folders.push_back(folder.parent_path());
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / pattern)) return folder / pattern;
    const std::string there = escaped(folder.string()) + "/" + pattern;
    if (!files_matching(there).empty()) return there;
  }
  return pattern;
}

std::string RunPaths::searched(const std::string& pattern) const {
  if (is_absolute(pattern)) return "";
  return ", in the current folder" +
         (working_folder_.empty() ? "" : ", " + working_folder_ + " (where the run was started)") +
         " and the folders above " + run_.string();
}

}  // namespace goat
