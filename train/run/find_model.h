// Finds the model that a path on the command line refers to.
#pragma once

#include <filesystem>
#include <string>

#include "train/run/newest_checkpoint.h"

namespace goat {

// The verified checkpoint that `path` refers to. `path` is one of: a run folder, which means its newest
// complete checkpoint (newer incomplete ones are reported on stderr); a folder with model.safetensors and
// state.json (a step_* folder, or one that was passed on); or that model.safetensors. Throws DataError that
// begins with `option`, the option that named the path. Ranks that call it together find the same and throw
// the same.
FoundCheckpoint find_model(const std::filesystem::path& path, const std::string& option);
FoundCheckpoint find_model(const std::filesystem::path& path, const std::string& option, RankGroup& group);

// The config of that model, TOML, before anything is verified: of a run its config.toml, else the one in
// state.json. Throws DataError.
std::string config_of_model(const std::filesystem::path& path, const std::string& option);

}  // namespace goat
