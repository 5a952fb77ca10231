#include "data/shard_source.h"

#include <glob.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <new>
#include <utility>

#include "data/permutation.h"
#include "kernels/philox.h"

namespace goat {
namespace {

std::vector<std::string> shard_files(const ShardOptions& options) {
  std::vector<std::string> files = options.files.empty() ? files_matching(options.pattern) : options.files;
  if (files.empty())
    throw DataError("no token shard matches '" + options.pattern + "'" +
                    (options.advice.empty() ? "" : ": " + options.advice));
  return files;
}

std::string folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

void check(const ShardOptions& options) {
  if (options.seq_len < 1)
    throw std::invalid_argument("ShardSource: seq_len " + std::to_string(options.seq_len) +
                                ", must be at least 1");
  if (options.vocab < 1)
    throw std::invalid_argument("ShardSource: vocab " + std::to_string(options.vocab) +
                                ", must be at least 1");
  if (options.bos_block && (options.bos < 0 || options.bos >= options.vocab)) {
    throw std::invalid_argument("ShardSource: bos " + std::to_string(options.bos) +
                                ", must lie in [0, vocab = " + std::to_string(options.vocab) + ")");
  }
}

}  // namespace

std::vector<std::string> files_matching(const std::string& pattern) {
  std::error_code unreadable;
  if (std::filesystem::exists(pattern, unreadable)) return {pattern};
  glob_t matches{};
  const std::unique_ptr<glob_t, decltype(&::globfree)> owner(&matches, &::globfree);
  const int result = ::glob(pattern.c_str(), GLOB_TILDE, nullptr, &matches);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  if (result != 0) return {};
  std::vector<std::string> files(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  std::sort(files.begin(), files.end());  // glob's order depends on the locale
  return files;
}

ShardSource::ShardSource(ShardOptions options) : options_(std::move(options)), starts_{0} {
  check(options_);
  for (std::string& path : shard_files(options_)) {
    shards_.emplace_back(std::move(path), options_.vocab);
    starts_.push_back(starts_.back() + shards_.back().tokens());
  }
  read_metas();
  const std::int64_t length = options_.seq_len;
  // Number of positions that can be a target.
  const std::int64_t usable = tokens() - (options_.bos_block ? 0 : 1);
  if (usable < length) {
    throw DataError("the shards matching '" + options_.pattern + "' hold " + std::to_string(tokens()) +
                    " tokens together, too few for one sequence of " + std::to_string(length) +
                    (options_.bos_block ? "" : " and its next token") +
                    ": prepare more text or lower data.seq_len");
  }
  const std::int64_t largest_shift = options_.shuffle ? length - 1 : 0;
  const std::int64_t blocks = std::max<std::int64_t>(1, (usable - largest_shift) / length);
  blocks_ = static_cast<std::uint64_t>(blocks);
  shifts_ = std::min(largest_shift, usable - blocks * length) + 1;
  check_ =
      std::async(std::launch::async, [this, stop = stop_.get_token()] { check_all_tokens(stop); }).share();
}

ShardSource::~ShardSource() { stop_.request_stop(); }

std::string ShardSource::description() const {
  return std::to_string(shards_.size()) + (shards_.size() == 1 ? " shard '" : " shards '") +
         options_.pattern + "': " + std::to_string(tokens()) + " tokens, " + std::to_string(blocks_) +
         (options_.bos_block ? " block" : " window") + (blocks_ == 1 ? "" : "s") + " of " +
         std::to_string(options_.seq_len) + (options_.shuffle ? ", shuffled" : ", in order");
}

void ShardSource::read_metas() {
  for (const Shard& shard : shards_) {
    const std::string folder = folder_of(shard.path());
    if (metas_.contains(folder)) continue;
    const std::optional<ShardMeta> meta = read_shard_meta(folder);
    if (!meta) continue;
    if (!meta->fits(options_.vocab))
      throw DataError("the shards in '" + folder + "' were made with the tokenizer " + meta->tokenizer +
                      ", vocabulary " + std::to_string(meta->vocab) +
                      " (meta.json), but the model has model.vocab = " + std::to_string(options_.vocab) +
                      ": set model.vocab=" + std::to_string(meta->vocab) +
                      ", or prepare the text with the other tokenizer");
    if (!metas_.empty() && metas_.begin()->second.tokenizer != meta->tokenizer)
      throw DataError("the shards in '" + metas_.begin()->first + "' and '" + folder +
                      "' were made with different tokenizers (" + metas_.begin()->second.tokenizer + ", " +
                      meta->tokenizer + "): train on one of them");
    metas_.emplace(folder, *meta);
  }
}

std::vector<ShardRecord> ShardSource::shards() const {
  std::vector<ShardRecord> records;
  for (const Shard& shard : shards_) {
    const std::string name = std::filesystem::path(shard.path()).filename();
    records.push_back({name, shard.tokens(), shard.samples_checksum(), ""});
    if (const auto meta = metas_.find(folder_of(shard.path())); meta != metas_.end())
      if (const auto sha256 = meta->second.sha256.find(name); sha256 != meta->second.sha256.end())
        records.back().sha256 = sha256->second;
  }
  return records;
}

std::string ShardSource::tokenizer() const { return metas_.empty() ? "" : metas_.begin()->second.tokenizer; }

std::vector<std::string> ShardSource::notes() const {
  std::vector<std::string> notes;
  for (const auto& [folder, meta] : metas_)
    if (options_.bos_block && meta.end_of_text && *meta.end_of_text != options_.bos)
      notes.push_back("each sequence begins with token " + std::to_string(options_.bos) +
                      " (data.bos), but documents in '" + folder + "' with token " +
                      std::to_string(*meta.end_of_text) + " (meta.json)");
  return notes;
}

std::int64_t ShardSource::block_start(std::uint64_t index) const {
  const std::uint64_t epoch = index / blocks_;
  const std::uint64_t position = index % blocks_;
  if (!options_.shuffle) return static_cast<std::int64_t>(position) * options_.seq_len;
  const std::uint64_t block = Permutation(blocks_, options_.seed, epoch)(position);
  // Block 1, because block 0 of this Philox sequence is the permutation's key.
  const double u = uniform(philox(options_.seed, RandomStream::shuffle, epoch, 1)[0]);
  const auto shift = static_cast<std::int64_t>(u * static_cast<double>(shifts_));
  return shift + static_cast<std::int64_t>(block) * options_.seq_len;
}

void ShardSource::read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
  const auto length = static_cast<std::size_t>(options_.seq_len);
  if (inputs.size() != length || targets.size() != length) {
    throw std::invalid_argument("ShardSource::read: spans of " + std::to_string(inputs.size()) + " and " +
                                std::to_string(targets.size()) + " tokens, sequences have " +
                                std::to_string(length));
  }
  if (check_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) check_.get();

  const std::size_t before = options_.bos_block ? 0 : 1;  // number of stream tokens before the first target
  std::vector<std::uint16_t> block(length + before);
  read_stream(block_start(index), block);
  std::copy(block.begin() + static_cast<std::ptrdiff_t>(before), block.end(), targets.begin());
  inputs[0] = options_.bos_block ? options_.bos : block[0];
  std::copy(targets.begin(), targets.end() - 1, inputs.begin() + 1);
}

void ShardSource::read_stream(std::int64_t first, std::span<std::uint16_t> tokens) const {
  auto shard =
      static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin()) - 1;
  while (!tokens.empty()) {
    const auto count = static_cast<std::size_t>(std::min(std::ssize(tokens), starts_[shard + 1] - first));
    if (count > 0) shards_[shard].read(first - starts_[shard], tokens.first(count));
    tokens = tokens.subspan(count);
    first = starts_[++shard];
  }
}

void ShardSource::check_all_tokens(const std::stop_token& stop) const {
  std::vector<std::uint16_t> buffer(std::size_t{1} << 21);  // 4 MiB
  for (const Shard& shard : shards_) {
    for (std::int64_t first = 0; first < shard.tokens() && !stop.stop_requested();) {
      const std::int64_t count = std::min(std::ssize(buffer), shard.tokens() - first);
      shard.read(first, std::span(buffer).first(static_cast<std::size_t>(count)));
      first += count;
    }
  }
}

}  // namespace goat
