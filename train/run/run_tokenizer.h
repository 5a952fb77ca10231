// Finds and keeps the files of a run's tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "train/run/run_paths.h"

namespace goat {

// The folder with GPT-2's vocab.bpe and encoder.json: RUN/tokenizer, otherwise tokenizer/ beside a training
// shard (`training` is the config's data.train). Empty if neither has them.
std::filesystem::path find_tokenizer(const std::filesystem::path& run, const RunPaths& paths,
                                     const std::string& training);

// Copies the two files of `folder` to RUN/tokenizer, unless they are there. If they cannot be copied, the run
// goes on without them and without a message.
void remember_tokenizer(const std::filesystem::path& run, const std::filesystem::path& folder);

}  // namespace goat
