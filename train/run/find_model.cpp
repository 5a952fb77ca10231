#include "train/run/find_model.h"

#include <cstdio>
#include <sstream>

#include "data/data_error.h"
#include "train/files/files.h"
#include "train/replicas/on_all_ranks.h"
#include "train/run/checkpoint.h"
#include "train/run/run_folder.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
// What a path refers to: a run, or the folder of one checkpoint.
struct Place {
  bool run;
  fs::path folder;
};

fs::path normal(const fs::path& path) {
  fs::path result = fs::absolute(path).lexically_normal();
  return result.has_filename() ? result : result.parent_path();  // without a trailing slash
}

[[noreturn]] void fail(const std::string& option, const fs::path& path, const std::string& what) {
  throw DataError(option + " " + path.string() + ": " + what);
}

Place place_of(const fs::path& path, const std::string& option) {
  if (!fs::exists(path)) fail(option, path, "no such file or folder");
  const bool folder = fs::is_directory(path);
  if (!folder && path.filename() != model_file)
    fail(option, path, "expected a run folder, a step_* folder in it, or the model.safetensors there");
  if (folder && !fs::exists(path / manifest_file) && !fs::exists(path / model_file))
    return {true, normal(path)};
  return {false, folder ? normal(path) : normal(path).parent_path()};
}

// The newest complete checkpoint of a run.
FoundCheckpoint newest_of(const fs::path& run, const std::string& option, RankGroup& group) {
  auto found = newest_checkpoint(
      run, Needed::model,
      [](const std::string& reason) { std::fprintf(stderr, "warning: %s\n", reason.c_str()); }, group);
  if (found) return *found;
  on_rank_0(group, "a run without checkpoints", [&]() -> std::string {
    const fs::path replaced = run / replaced_run;
    fail(option, run,
         std::string("no complete checkpoint here; expected a run folder with checkpoints/step_*, or a "
                     "folder with model.safetensors and state.json") +
             (fs::exists(replaced) ? "\nThe run that this one replaces is still in " + replaced.string() +
                                         ", until this one has a checkpoint"
                                   : ""));
  });
  return {};  // rank 0 has thrown
}
}  // namespace

FoundCheckpoint find_model(const fs::path& path, const std::string& option) {
  RankGroup alone(Launch{}, {});
  return find_model(path, option, alone);
}

FoundCheckpoint find_model(const fs::path& path, const std::string& option, RankGroup& group) {
  const std::string told = on_rank_0(group, "the model to open", [&] {
    const Place place = place_of(path, option);
    return (place.run ? "run " : "checkpoint ") + place.folder.string();
  });
  const std::size_t space = told.find(' ');
  const fs::path folder = told.substr(space + 1);
  if (told.starts_with("run ")) return newest_of(folder, option, group);
  return {folder, verify_checkpoint(folder, Needed::model, group)};
}

std::string config_of_model(const fs::path& path, const std::string& option) {
  const Place place = place_of(path, option);
  const fs::path config = place.run ? config_of_run(place.folder) : place.folder / manifest_file;
  if (place.run && config.empty()) fail(option, path, "no config.toml: not a run folder");
  try {
    const std::string text = read_small_file(config);
    return place.run ? text : parse_manifest(text, config.string()).config;
  } catch (const DataError&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw DataError(error.what());
  }
}

}  // namespace goat
