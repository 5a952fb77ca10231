// Where a run keeps, or can find, the files of its tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "train/run/run_paths.h"

namespace goat {

// The folder with GPT-2's vocab.bpe and encoder.json: RUN/tokenizer, else tokenizer/ beside a training shard
// (`training`, the config's data.train). Empty where neither has them.
std::filesystem::path find_tokenizer(const std::filesystem::path& run, const RunPaths& paths,
                                     const std::string& training);

// Copies the two files of `folder` into RUN/tokenizer, unless they are there. Where they cannot be copied,
// the run stays without them; nobody is told.
void remember_tokenizer(const std::filesystem::path& run, const std::filesystem::path& folder);

}  // namespace goat
