#include "train/training/sources.h"

#include <fnmatch.h>

#include <filesystem>

#include "data/copy_mixture.h"
#include "data/shard_source.h"

namespace goat {

namespace {
std::unique_ptr<TokenSource> open_copy_mixture(const Config& config, bool validation) {
  return std::make_unique<CopyMixture>(
      CopyMixtureOptions{.vocab = config.model.vocab,
                         .seq_len = config.data.seq_len,
                         .p_first = config.data.copy_mixture.p_first,
                         .p_prev = config.data.copy_mixture.p_prev,
                         .seed = static_cast<std::uint64_t>(config.train.seed),
                         .validation = validation});
}

// The folder where prepare.py must write shards so that `pattern` matches them. Empty if the pattern does
// not determine it.
std::string folder_to_prepare(const std::string& pattern) {
  const std::filesystem::path path(pattern);
  const std::string folder = path.parent_path().string(), file = path.filename().string();
  constexpr const char* plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./-+=:,@% ";
  const bool fits = ::fnmatch(file.c_str(), "train_000000.bin", 0) == 0 ||
                    ::fnmatch(file.c_str(), "val_000000.bin", 0) == 0;
  if (!fits || folder == "/" || folder.find_first_not_of(plain) != std::string::npos) return "";
  return folder.empty() ? "." : folder.find(' ') == std::string::npos ? folder : "'" + folder + "'";
}

// The command that makes shards for this config that `pattern` matches.
std::string how_to_prepare(const Config& config, const std::string& pattern) {
  const std::string tokenizer = assumed_tokenizer(config), folder = folder_to_prepare(pattern);
  const std::string check = "check data.train and data.val (relative paths begin in the current folder)";
  if (tokenizer.empty() || tokenizer == "dna")
    return check +
           "; data/prepare.py text makes shards of bytes (model.vocab = 256) and of GPT-2's tokens (50257), "
           "here model.vocab = " +
           std::to_string(config.model.vocab);
  return check + ", or make shards from text files:\n  .venv/bin/python data/prepare.py text --tokenizer " +
         tokenizer + " --out " + (folder.empty() ? "FOLDER" : folder) + " FILE...";
}

std::unique_ptr<TokenSource> open_shards(const Config& config, const std::string& pattern, bool shuffle,
                                         const std::vector<std::string>& files = {}) {
  return std::make_unique<ShardSource>(ShardOptions{.pattern = pattern,
                                                    .seq_len = config.data.seq_len,
                                                    .bos_block = config.data.block == "bos",
                                                    .bos = static_cast<std::int32_t>(config.data.bos),
                                                    .vocab = config.model.vocab,
                                                    .shuffle = shuffle,
                                                    .seed = static_cast<std::uint64_t>(config.train.seed),
                                                    .advice = how_to_prepare(config, pattern),
                                                    .files = files});
}
}  // namespace

std::string assumed_tokenizer(const Config& config) {
  constexpr std::int64_t dna = 5, bytes = 256, gpt2 = 50257, padding = 128;
  const std::int64_t vocab = config.model.vocab;
  if (vocab == dna) return "dna";
  if (vocab >= bytes && vocab < bytes + padding) return "bytes";
  if (vocab >= gpt2 && vocab < gpt2 + padding) return "gpt2";
  return "";
}

std::string tokenizer_text(const Config& config, const TokenSource& data) {
  if (!data.tokenizer().empty()) return data.tokenizer() + ", as meta.json beside the shards says";
  const std::string assumed = assumed_tokenizer(config),
                    vocab = "model.vocab = " + std::to_string(config.model.vocab);
  if (assumed.empty())
    return "unknown: no meta.json of prepare.py beside the shards, and " + vocab +
           " is neither bytes nor GPT-2's";
  return assumed + ", assumed from " + vocab + ": no meta.json of prepare.py beside the shards";
}

std::unique_ptr<TokenSource> open_training_source(const Config& config) {
  if (config.data.source == "copy_mixture") return open_copy_mixture(config, false);
  return open_shards(config, config.data.train, true);
}

std::unique_ptr<TokenSource> open_validation_source(const Config& config) {
  if (config.eval.tokens == 0) return nullptr;
  if (config.data.source == "copy_mixture") return open_copy_mixture(config, true);
  return config.data.val.empty() ? nullptr : open_shards(config, config.data.val, false);
}

std::unique_ptr<TokenSource> open_evaluation_source(const Config& config,
                                                    const std::vector<std::string>& files) {
  if (config.data.source == "copy_mixture") return open_copy_mixture(config, true);
  if (files.empty() && config.data.val.empty()) return nullptr;
  return open_shards(config, config.data.val, false, files);
}

}  // namespace goat
