// Finds and keeps the files of a run's tokenizer.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/run/run_paths.h"

namespace goat {

// The files of a tokenizer, by its name: "gpt2" has vocab.bpe and encoder.json, "tokenizer.json" has that
// file. Empty if it has no files.
const std::vector<std::string>& tokenizer_files(const std::string& name);

// The folder with the files of the tokenizer `name`: RUN/tokenizer, otherwise tokenizer/ beside a training
// shard (`training`: see training_patterns). Empty if neither has them.
std::filesystem::path find_tokenizer(const std::filesystem::path& run, const RunPaths& paths,
                                     const std::vector<std::string>& training, const std::string& name);

// Copies the tokenizer's files of `folder` to RUN/tokenizer, unless they are there. If they cannot be copied,
// the run goes on without them and without a message.
void remember_tokenizer(const std::filesystem::path& run, const std::filesystem::path& folder,
                        const std::string& name);

// At the start of training: copies the tokenizers' files that lie beside the training shards to
// RUN/tokenizer.
void remember_tokenizers(const std::filesystem::path& run, const std::vector<std::string>& training);

}  // namespace goat
