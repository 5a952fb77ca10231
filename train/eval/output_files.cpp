#include "train/eval/output_files.h"

#include <algorithm>
#include <set>

#include "train/config/config.h"
#include "train/files/files.h"

namespace goat {

namespace fs = std::filesystem;

bool is_device_or_folder(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) && !fs::is_regular_file(path, error);
}

namespace {
void check_file(const char* option, const fs::path& file) {
  if (const std::string reason = why_not_writable(file); !reason.empty())
    throw ConfigError(std::string(option) + " " + file.string() + ": " + reason);
}

// The same for every way to write the path.
fs::path resolved(const fs::path& path) { return fs::weakly_canonical(fs::absolute(path)); }
}  // namespace

fs::path per_token_path(const std::string& file, const std::vector<std::string>& parts) {
  fs::path path = file;
  std::string name = path.stem().string();
  for (std::string part : parts) {
    std::ranges::replace(part, '/', '_');
    name += "_" + part;
  }
  return path.replace_filename(name + path.extension().string());
}

void check_json_file(const EvalOptions& options) {
  if (!options.json.empty()) check_file("--json", options.json);
}

void check_per_token_files(const EvalOptions& options, const std::vector<fs::path>& files) {
  const bool renamed = std::ranges::any_of(files, [&](const fs::path& f) { return f != options.per_token; });
  if (renamed && is_device_or_folder(options.per_token))
    throw ConfigError("--per-token " + options.per_token +
                      ": is not a file; several lengths, runs or protocols are written to a file each, as "
                      "NAME_LENGTH.npy");
  std::set<fs::path> seen;
  for (const fs::path& file : files) {
    check_file("--per-token", file);
    if (is_device_or_folder(file)) continue;
    if (!options.json.empty() && resolved(file) == resolved(options.json))
      throw ConfigError("--json and --per-token are to be written to the same file, " + file.string());
    if (!seen.insert(resolved(file)).second)
      throw ConfigError("--per-token: the losses of two evaluations are to be written to the same file, " +
                        file.string() + "; evaluate the runs one at a time");
  }
}

}  // namespace goat
