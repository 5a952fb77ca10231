#include "train/run/run_folder.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/data_error.h"
#include "train/config/mixture.h"
#include "train/run/checkpoint.h"
#include "train/run/run_tokenizer.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr const char* config_file = "config.toml";
constexpr const char* metrics_file = "metrics.jsonl";
constexpr const char* summary_file = "summary.json";
constexpr const char* start_file = "init_from.json";
// Exists until all entries of the old run have been moved.
const std::string moving_aside = std::string(replaced_run) + ".partial";

// The entries that a run writes; config.toml comes first.
constexpr std::array run_entries = {config_file,   metrics_file, summary_file, start_file,
                                    "checkpoints", "figures",    "analysis",   "tokenizer"};

// Length of metrics.jsonl in bytes, up to and including the last complete line whose step
// the checkpoint includes.
std::uint64_t metrics_up_to(const fs::path& path, std::int64_t step) {
  if (!fs::exists(path)) return 0;
  std::ifstream file(path, std::ios::binary);
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() ||
        json["step"].get<std::int64_t>() > step)
      break;
    bytes += line.size() + 1;
  }
  return bytes;
}

bool is_there(const fs::path& path) { return fs::exists(fs::symlink_status(path)); }

bool is_empty_file(const fs::path& path) {
  std::error_code none;
  return fs::file_size(path, none) == 0 && !none;
}

// Whether the folder holds a step or a checkpoint of a run.
bool holds_progress(const fs::path& path) {
  return (is_there(path / metrics_file) && !is_empty_file(path / metrics_file)) ||
         !checkpoint_folders(path).empty();
}

// Whether the entry may be left over from a start that was killed or from --profile, or is an empty folder.
bool is_leftover(const fs::directory_entry& entry) {
  const fs::path name = entry.path().filename();
  return name.extension() == ".partial" || name == RunLock::file_name || name == replaced_run ||
         name == profile_folder || (entry.is_directory() && fs::is_empty(entry.path())) ||
         (name == metrics_file && is_empty_file(entry.path()));
}

enum class Content { nothing, run, something_else };

bool is_a_config(const fs::path& path) {
  try {
    Config config;
    apply_toml(config, read_small_file(path), path.string());
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// A folder with a valid config but without a step is not a run. A start that was killed may have left the
// config, or somebody put it there to train in this folder.
Content content_of(const fs::path& path) {
  if (!fs::exists(path)) return Content::nothing;
  if (!fs::is_directory(path)) throw ConfigError("--out " + path.string() + ": exists and is not a folder");
  if (is_there(path / moving_aside)) return Content::run;  // take_back_old_run moves it back
  if (holds_progress(path)) return is_there(path / config_file) ? Content::run : Content::something_else;
  if (is_there(path / replaced_run)) return Content::run;
  const bool vacant = std::ranges::all_of(fs::directory_iterator(path), [](const fs::directory_entry& entry) {
    return is_leftover(entry) || (entry.path().filename() == config_file && is_a_config(entry.path()));
  });
  return vacant ? Content::nothing : Content::something_else;
}

void refuse_what_is_there(const fs::path& path, ExistingRun existing) {
  const Content content = content_of(path);
  if (content == Content::something_else)
    throw ConfigError("--out " + path.string() +
                      ": the folder holds files but no run; choose another folder");
  if (content == Content::run && existing == ExistingRun::refuse)
    throw ConfigError(
        "--out " + path.string() +
        ": holds another run; give --resume to continue it, --overwrite to replace it, or another --out");
}

void move_entries(const fs::path& from, const fs::path& to) {
  for (const char* name : run_entries)
    if (is_there(from / name)) fs::rename(from / name, to / name);
}

// An overwrite would move a link aside, with the old run, and put a plain folder in its place.
void refuse_links(const fs::path& path) {
  for (const char* name : run_entries)
    if (fs::is_symlink(path / name))
      throw ConfigError("--overwrite: " + (path / name).string() + " is a link to " +
                        fs::read_symlink(path / name).string() +
                        ", and the new run would not write there. Remove the link, or give another --out");
}

void remove_entries(const fs::path& path) {
  for (const char* name : run_entries) fs::remove_all(path / name);
}

// Moves the run back that an --overwrite moved aside, completely or in part, if the program was killed before
// the new run had anything of its own.
void take_back_old_run(const fs::path& path) {
  if (is_there(path / moving_aside)) {
    move_entries(path / moving_aside, path);
    fs::remove_all(path / moving_aside);
  } else if (is_there(path / replaced_run) && !holds_progress(path)) {
    remove_entries(path);
    move_entries(path / replaced_run, path);
    fs::remove_all(path / replaced_run);
  }
}

// Keeps the config.toml that somebody put into an empty folder, because it may have comments: renames
// it to config.toml.before.
void set_config_aside(const fs::path& path, const std::string& resolved) {
  const fs::path config = path / config_file;
  if (is_there(config) && read_small_file(config) != resolved)
    fs::rename(config, config.string() + ".before");
}
}  // namespace

RunFolder::RunFolder(const fs::path& path, ExistingRun existing) : path_(path) {
  refuse_what_is_there(path, existing);
  try {
    make_folder();
    lock_.emplace(path);
    take_back_old_run(path);
    refuse_what_is_there(path, existing);  // again, because it may have changed before it was locked
    fresh_ = content_of(path) == Content::nothing;
    overwrite_ = !fresh_ && existing == ExistingRun::overwrite;
    if (overwrite_) refuse_links(path);
    // A run that has already ended saves nothing more, so that leftovers must be removed here.
    if (existing == ExistingRun::resume) remove_leftovers(path);
  } catch (...) {
    remove_what_was_made();
    throw;
  }
}

RunFolder::~RunFolder() { remove_what_was_made(); }

void RunFolder::remove_what_was_made() {
  lock_.reset();
  if (established()) return;
  std::error_code not_empty;
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) fs::remove(*folder, not_empty);
}

void RunFolder::make_folder() {
  for (fs::path folder = fs::absolute(path_).lexically_normal(); !fs::exists(folder);
       folder = folder.parent_path())
    made_.insert(made_.begin(), folder);
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) throw std::runtime_error("cannot create run folder " + path_.string() + ": " + error.message());
}

void RunFolder::establish(const Config& config) {
  if (established()) return;
  const std::uint64_t metrics_bytes =
      resumed_ ? metrics_up_to(path_ / metrics_file, resumed_->manifest.state.step) : 0;
  if (overwrite_) move_old_run_aside();
  if (fresh_) set_config_aside(path_, to_toml(config));
  try {
    // config.toml comes first, because it marks the folder as a run.
    write_file_atomically(path_ / config_file, to_toml(config));
    // A resumed run may have a summary from its earlier end.
    fs::remove(path_ / summary_file);
    if (!start_.empty()) write_file_atomically(path_ / start_file, start_);
    fs::create_directories(path_ / "figures");
    fs::create_directories(path_ / "checkpoints");
    // Sampling needs the tokenizer later, even if the data have moved.
    if (config.data.source == "shards") remember_tokenizers(path_, training_patterns(config));
    metrics_.emplace(path_ / metrics_file, metrics_bytes);
  } catch (...) {
    if (fresh_ || overwrite_) remove_entries(path_);
    take_back_old_run(path_);
    throw;
  }
}

// If an earlier --overwrite was killed before its first checkpoint, the run that it replaced is already
// aside. In that case this run stays aside, and what the killed program began is removed.
void RunFolder::move_old_run_aside() {
  if (is_there(path_ / replaced_run) && checkpoint_folders(path_).empty()) return remove_entries(path_);
  fs::remove_all(path_ / replaced_run);
  fs::create_directory(path_ / moving_aside);
  move_entries(path_, path_ / moving_aside);
  fs::rename(path_ / moving_aside, path_ / replaced_run);
}

void RunFolder::log_metrics(const nlohmann::json& line) { metrics_->write(line.dump()); }

void RunFolder::write_summary(const nlohmann::json& summary) const {
  write_file_atomically(path_ / summary_file, summary.dump(2) + "\n");
}

void RunFolder::checkpoint_stands() {
  std::error_code ignored;
  fs::remove_all(path_ / replaced_run, ignored);
}

void RunFolder::require_in_place() const {
  if (!lock_->in_place())
    throw std::runtime_error("the run folder " + path_.string() +
                             " was moved or removed while the run was going on");
}

fs::path config_of_run(const fs::path& path) {
  for (const fs::path& folder : {path, path / moving_aside, path / replaced_run})
    if (is_there(folder / config_file)) return folder / config_file;
  return {};
}

std::string describe_run_folder(const fs::path& path) {
  if (const auto holder = RunLock::holder(path)) return "in use: " + *holder + " is training there";
  switch (content_of(path)) {
    case Content::nothing: return "new";
    case Content::something_else: return "holds files but no run: choose another folder";
    case Content::run: break;
  }
  const std::vector<fs::path> checkpoints = checkpoint_folders(path);
  return "holds a run (" +
         (checkpoints.empty() ? "no checkpoint"
                              : "newest checkpoint " + checkpoints.front().filename().string()) +
         "): --resume continues it, --overwrite replaces it";
}

}  // namespace goat
