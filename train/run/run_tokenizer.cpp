#include "train/run/run_tokenizer.h"

#include <map>

#include "data/shard_source.h"
#include "train/files/files.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
const std::map<std::string, std::vector<std::string>> files_of = {{"gpt2", {"vocab.bpe", "encoder.json"}},
                                                                  {"tokenizer.json", {"tokenizer.json"}}};

bool holds_tokenizer(const fs::path& folder, const std::string& name) {
  std::error_code error;
  for (const std::string& file : tokenizer_files(name))
    if (!fs::is_regular_file(folder / file, error)) return false;
  return true;
}
}  // namespace

const std::vector<std::string>& tokenizer_files(const std::string& name) {
  static const std::vector<std::string> none;
  const auto found = files_of.find(name);
  return found == files_of.end() ? none : found->second;
}

fs::path find_tokenizer(const fs::path& run, const RunPaths& paths, const std::vector<std::string>& training,
                        const std::string& name) {
  const fs::path own = run / "tokenizer";
  if (holds_tokenizer(own, name)) return own;
  for (const std::string& pattern : training)
    for (const std::string& shard : files_matching(paths.locate(pattern)))
      if (const fs::path beside = fs::path(shard).parent_path() / "tokenizer"; holds_tokenizer(beside, name))
        return beside;
  return {};
}

void remember_tokenizer(const fs::path& run, const fs::path& folder, const std::string& name) {
  const fs::path own = run / "tokenizer";
  if (!holds_tokenizer(folder, name) || holds_tokenizer(own, name)) return;
  try {
    fs::create_directory(own);
    for (const std::string& file : tokenizer_files(name))
      write_file_atomically(own / file, read_small_file(folder / file));
  } catch (const std::exception&) {
    std::error_code not_empty;
    fs::remove(own, not_empty);
  }
}

void remember_tokenizers(const fs::path& run, const std::vector<std::string>& training) {
  for (const auto& [name, files] : files_of)
    remember_tokenizer(run, find_tokenizer(run, RunPaths(run, ""), training, name), name);
}

}  // namespace goat
