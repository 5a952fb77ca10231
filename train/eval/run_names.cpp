#include "train/eval/run_names.h"

#include <algorithm>
#include <iterator>

namespace goat {

namespace fs = std::filesystem;

namespace {
// The last `count` folders of the path, or all if it has fewer.
std::string end_of(const fs::path& path, std::ptrdiff_t count) {
  const fs::path folders = path.relative_path();
  const std::ptrdiff_t all = std::distance(folders.begin(), folders.end());
  if (count > all) return path.string();
  fs::path end;
  for (auto folder = std::next(folders.begin(), all - count); folder != folders.end(); ++folder)
    end /= *folder;
  return end.string();
}

std::string shortest_name(const fs::path& path, const std::vector<fs::path>& paths) {
  for (std::ptrdiff_t count = 1;; ++count) {
    const std::string name = end_of(path, count);
    const auto is_taken = [&](const fs::path& other) {
      return other != path && end_of(other, count) == name;
    };
    if (name == path.string() || std::ranges::none_of(paths, is_taken)) return name;
  }
}
}  // namespace

std::vector<std::string> shortest_names(const std::vector<fs::path>& paths) {
  std::vector<std::string> names;
  names.reserve(paths.size());
  for (const fs::path& path : paths) names.push_back(shortest_name(path, paths));
  return names;
}

std::vector<std::string> names_of(const std::vector<SavedModel>& models) {
  std::vector<fs::path> runs;
  for (const SavedModel& model : models) runs.push_back(model.run());
  std::vector<std::string> names = shortest_names(runs);
  for (std::size_t i = 0; i < models.size(); ++i)
    if (std::ranges::count(runs, runs[i]) > 1) names[i] += "/" + models[i].checkpoint().filename().string();
  return names;
}

}  // namespace goat
