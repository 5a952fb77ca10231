// The files that `eval` writes: their names, and whether they can be written.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/eval/evaluate.h"

namespace goat {

// NAME.npy becomes NAME_PART_PART.npy; a '/' in a part becomes '_'.
std::filesystem::path per_token_path(const std::string& file, const std::vector<std::string>& parts);

// Whether the path leads to something that is written through, and not replaced.
bool is_device_or_folder(const std::filesystem::path& path);

// Throws ConfigError if --json cannot be written.
void check_json_file(const EvalOptions& options);
// The same for the files of --per-token, and if two of all files are the same.
void check_per_token_files(const EvalOptions& options, const std::vector<std::filesystem::path>& files);

}  // namespace goat
