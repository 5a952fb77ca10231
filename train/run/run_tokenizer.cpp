#include "train/run/run_tokenizer.h"

#include "data/shard_source.h"
#include "train/files/files.h"

namespace goat {

namespace fs = std::filesystem;

namespace {
constexpr const char* file_names[] = {"vocab.bpe", "encoder.json"};

bool holds_tokenizer(const fs::path& folder) {
  std::error_code error;
  for (const char* name : file_names)
    if (!fs::is_regular_file(folder / name, error)) return false;
  return true;
}
}  // namespace

fs::path find_tokenizer(const fs::path& run, const RunPaths& paths, const std::string& training) {
  const fs::path own = run / "tokenizer";
  if (holds_tokenizer(own)) return own;
  if (training.empty()) return {};
  for (const std::string& shard : files_matching(paths.locate(training)))
    if (const fs::path beside = fs::path(shard).parent_path() / "tokenizer"; holds_tokenizer(beside))
      return beside;
  return {};
}

void remember_tokenizer(const fs::path& run, const fs::path& folder) {
  const fs::path own = run / "tokenizer";
  if (!holds_tokenizer(folder) || holds_tokenizer(own)) return;
  try {
    fs::create_directory(own);
    for (const char* name : file_names) write_file_atomically(own / name, read_small_file(folder / name));
  } catch (const std::exception&) {
    std::error_code not_empty;
    fs::remove(own, not_empty);
  }
}

}  // namespace goat
