#include "train/training/sources.h"

#include <fnmatch.h>

#include <filesystem>

#include "data/copy_mixture.h"
#include "data/crop_source.h"
#include "data/mixture_source.h"
#include "data/needle_task.h"
#include "data/shard_scan.h"
#include "data/shard_source.h"
#include "train/config/mixture.h"
#include "train/replicas/on_all_ranks.h"

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

// Null if the source of the config is another.
std::unique_ptr<TokenSource> make_needle_task(const Config& config, bool validation,
                                              std::optional<double> depth = {}) {
  const auto& [digits, passkey_depth] = config.data.passkey;
  const auto& [letters, min_depth, max_depth] = config.data.niah;
  NeedleTaskOptions options{.seq_len = config.data.seq_len,
                            .seed = static_cast<std::uint64_t>(config.train.seed),
                            .validation = validation};
  if (config.data.source == "passkey") {
    options.kind = NeedleKind::passkey;
    options.answer_length = digits;
    options.min_depth = depth.value_or(0);
    options.max_depth = depth.value_or(passkey_depth);
  } else if (config.data.source == "niah") {
    options.kind = NeedleKind::niah;
    options.answer_length = letters;
    options.min_depth = depth.value_or(min_depth);
    options.max_depth = depth.value_or(max_depth);
  } else {
    return nullptr;
  }
  return std::make_unique<NeedleTask>(options);
}

// Null if the data are shards.
std::unique_ptr<TokenSource> open_generated(const Config& config, bool validation) {
  if (config.data.source == "copy_mixture") return open_copy_mixture(config, validation);
  return make_needle_task(config, validation);
}

void require_answers(const Config& config, const TokenSource& source) {
  if (config.train.loss == "mean" || !source.answer(0).empty()) return;
  throw ConfigError("train.loss = \"" + config.train.loss + "\" weighs the answers, but data.source = \"" +
                    config.data.source +
                    "\" asks no question; set train.loss to mean, or data.source to passkey or niah");
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

// The subcommand of prepare.py that makes shards of this tokenizer in the folder, with its options.
std::string subcommand(const Config& config, const std::string& tokenizer, const std::string& folder) {
  const std::string name = std::filesystem::path(folder).filename().string(),
                    out = " --out " + (folder.empty() ? "FOLDER" : folder);
  const std::int64_t record = config.data.record_tokens;
  if (tokenizer == "gpt2" && (name == "c4" || name == "fineweb")) return name + out;
  if (tokenizer == "dna")
    return "fasta --input FILE.fa.gz" + out +
           (record == Config::Data{}.record_tokens ? "" : " --record-tokens " + std::to_string(record));
  return "text --tokenizer " + tokenizer + out + " FILE...";
}

// The command that makes shards for this config that `pattern` matches.
std::string how_to_prepare(const Config& config, const std::string& pattern) {
  const std::string tokenizer = assumed_tokenizer(config),
                    check =
                        "check data.train, data.mixture and data.val (relative paths begin in the current "
                        "folder)";
  if (tokenizer.empty())
    return check +
           "; data/prepare.py makes shards of bytes (model.vocab = 256), of GPT-2's tokens (50257), of those "
           "of a tokenizer.json and of bases (5), here model.vocab = " +
           std::to_string(config.model.vocab);
  return check + ", or make the shards:\n  .venv/bin/python data/prepare.py " +
         subcommand(config, tokenizer, folder_to_prepare(pattern));
}

std::unique_ptr<TokenSource> open_shards(const Config& config, const std::string& pattern, bool shuffle,
                                         const std::vector<std::string>& files, const DataShare& share) {
  if (config.data.block == "crop")
    return std::make_unique<CropSource>(CropOptions{.pattern = pattern,
                                                    .seq_len = config.data.seq_len,
                                                    .record_tokens = config.data.record_tokens,
                                                    .vocab = config.model.vocab,
                                                    .shuffle = shuffle,
                                                    .seed = static_cast<std::uint64_t>(config.train.seed),
                                                    .advice = how_to_prepare(config, pattern),
                                                    .files = files,
                                                    .scan = share.scan,
                                                    .check_rank = share.check_rank,
                                                    .check_size = share.check_size});
  return std::make_unique<ShardSource>(ShardOptions{.pattern = pattern,
                                                    .seq_len = config.data.seq_len,
                                                    .bos_block = config.data.block == "bos",
                                                    .bos = static_cast<std::int32_t>(config.data.bos),
                                                    .vocab = config.model.vocab,
                                                    .shuffle = shuffle,
                                                    .seed = static_cast<std::uint64_t>(config.train.seed),
                                                    .advice = how_to_prepare(config, pattern),
                                                    .files = files,
                                                    .scan = share.scan,
                                                    .check_rank = share.check_rank,
                                                    .check_size = share.check_size});
}

std::unique_ptr<TokenSource> open_training_shards(const Config& config, const DataShare& share) {
  if (config.data.mixture.empty()) return open_shards(config, config.data.train, true, {}, share);
  const std::vector<WeightedPattern> wanted = parse_mixture(config.data.mixture);
  const std::vector<std::string> scans =
      share.scan.empty() ? std::vector<std::string>(wanted.size()) : split_scans(share.scan, wanted.size());
  std::vector<MixturePart> parts;
  for (std::size_t k = 0; k < wanted.size(); ++k)
    parts.push_back({wanted[k].weight, open_shards(config, wanted[k].pattern, true, {},
                                                   {scans[k], share.check_rank, share.check_size})});
  return std::make_unique<MixtureSource>(std::move(parts));
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
           " is that of no tokenizer known here (5: bases, 256: bytes, 50257: GPT-2)";
  return assumed + ", assumed from " + vocab + ": no meta.json of prepare.py beside the shards";
}

std::unique_ptr<TokenSource> open_training_source(const Config& config, const DataShare& share) {
  auto source = open_generated(config, false);
  if (!source) source = open_training_shards(config, share);
  require_answers(config, *source);
  return source;
}

std::unique_ptr<TokenSource> open_validation_source(const Config& config, const DataShare& share) {
  if (config.eval.tokens == 0) return nullptr;
  if (auto generated = open_generated(config, true)) return generated;
  return config.data.val.empty() ? nullptr : open_shards(config, config.data.val, false, {}, share);
}

RunData open_data(const Config& config, Ranks& ranks) {
  const auto open = [&](const char* what, auto open_source) {
    DataShare share{.check_rank = ranks.rank(), .check_size = ranks.size()};
    std::unique_ptr<TokenSource> source;
    share.scan = on_rank_0(*ranks.group, what, [&] {
      source = open_source(config, share);
      return source ? source->scan() : std::string();
    });
    return ranks.first() ? std::move(source) : open_source(config, share);
  };
  std::unique_ptr<TokenSource> training = open("the training data", open_training_source);
  return {std::move(training), open("the validation data", open_validation_source)};
}

std::unique_ptr<TokenSource> open_evaluation_source(const Config& config,
                                                    const std::vector<std::string>& files) {
  if (auto generated = open_generated(config, true)) return generated;
  if (files.empty() && config.data.val.empty()) return nullptr;
  return open_shards(config, config.data.val, false, files, {});
}

std::unique_ptr<TokenSource> open_needle_task(const Config& config, std::optional<double> depth) {
  return make_needle_task(config, true, depth);
}

}  // namespace goat
