#include "data/shard_set.h"

#include <fnmatch.h>
#include <glob.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <utility>

#include "data/parallel.h"

namespace goat {
namespace {

std::string folder_of(const Shard& shard) {
  const std::filesystem::path folder = std::filesystem::path(shard.path()).parent_path();
  return folder.empty() ? "." : folder.string();
}

std::string name_of(const Shard& shard) { return std::filesystem::path(shard.path()).filename(); }

}  // namespace

std::vector<std::string> files_matching(const std::string& pattern) {
  std::error_code unreadable;
  if (std::filesystem::exists(pattern, unreadable)) return {pattern};
  glob_t matches{};
  const std::unique_ptr<glob_t, decltype(&::globfree)> owner(&matches, &::globfree);
  const int result = ::glob(pattern.c_str(), GLOB_TILDE | GLOB_NOSORT, nullptr, &matches);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  if (result != 0) return {};
  std::vector<std::string> files(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  std::sort(files.begin(), files.end());  // glob's own order depends on the locale
  return files;
}

ShardSet::ShardSet(ShardFiles files) : files_(std::move(files)) {
  if (files_.vocab < 1 || files_.vocab > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("ShardSet: vocab " + std::to_string(files_.vocab) +
                                ", must be from 1 to 2^31 - 1");
  if (files_.check_rank < 0 || files_.check_rank >= files_.check_size)
    throw std::invalid_argument("ShardSet: check_rank " + std::to_string(files_.check_rank) +
                                " of check_size " + std::to_string(files_.check_size));
  if (files_.scan.empty()) {
    open_shards();
    read_metas();
  } else {
    take_scan();
  }
  check_ = std::async(std::launch::async, [this, stop = stop_.get_token()] { check_all(stop); }).share();
}

ShardSet::~ShardSet() { stop_.request_stop(); }

void ShardSet::open_shards() {
  const std::vector<std::string> paths = files_.files.empty() ? files_matching(files_.pattern) : files_.files;
  if (paths.empty())
    throw DataError("no token shard matches '" + files_.pattern + "'" +
                    (files_.advice.empty() ? "" : ": " + files_.advice));
  std::error_code gone;  // then relative paths mean nothing anyway
  working_folder_ = std::filesystem::current_path(gone).string();
  std::vector<std::optional<Shard>> opened(paths.size());
  for_each_in_parallel(paths.size(), [&](std::size_t i) { opened[i].emplace(paths[i], files_.vocab); });
  for (std::optional<Shard>& shard : opened) add_shard(std::move(*shard));
}

void ShardSet::take_scan() {
  const ShardScan scan = decode_shard_scan(files_.scan);
  files_.scan.clear();
  working_folder_ = scan.working_folder;
  for (const ScannedShard& scanned : scan.shards) {
    add_shard(Shard(scanned, scan.working_folder, files_.vocab));
    samples_.push_back(scanned.samples);
  }
  for (const auto& [folder, meta] : scan.metas) add_meta(folder, meta);
}

void ShardSet::add_shard(Shard shard) {
  starts_.push_back(starts_.back() + shard.tokens());
  shards_.push_back(std::move(shard));
}

void ShardSet::add_meta(const std::string& folder, ShardMeta meta) {
  check_meta(folder, meta);
  metas_.emplace(folder, std::move(meta));
}

void ShardSet::read_metas() {
  std::set<std::string> looked_into;
  for (const Shard& shard : shards_) {
    const std::string folder = folder_of(shard);
    if (!looked_into.insert(folder).second) continue;
    std::optional<ShardMeta> meta = read_shard_meta(folder);
    if (meta) add_meta(folder, std::move(*meta));
  }
}

void ShardSet::check_meta(const std::string& folder, const ShardMeta& meta) const {
  if (!meta.fits(files_.vocab))
    throw DataError("the shards in '" + folder + "' were made with the tokenizer " + meta.tokenizer +
                    ", vocabulary " + std::to_string(meta.vocab) +
                    " (meta.json), but the model has model.vocab = " + std::to_string(files_.vocab) +
                    ": set model.vocab=" + std::to_string(meta.vocab) +
                    ", or prepare the text with the other tokenizer");
  if (metas_.empty()) return;
  const auto& [other_folder, other] = *metas_.begin();
  const auto told = [](const ShardMeta& of) {
    return of.tokenizer + " of " + std::to_string(of.vocab) +
           (of.tokenizer_sha256.empty() ? "" : ", sha256 " + of.tokenizer_sha256);
  };
  if (told(other) != told(meta))
    throw DataError("the shards in '" + other_folder + "' and '" + folder +
                    "' were made with different tokenizers (" + told(other) + "; " + told(meta) +
                    "): train on one of them");
}

std::string ShardSet::sha256_of(const Shard& shard) const {
  const auto meta = metas_.find(folder_of(shard));
  if (meta == metas_.end()) return "";
  const auto sha256 = meta->second.sha256.find(name_of(shard));
  return sha256 == meta->second.sha256.end() ? "" : sha256->second;
}

void ShardSet::read(std::int64_t first, std::span<std::int32_t> tokens) const {
  if (check_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) check_.get();
  auto shard =
      static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin()) - 1;
  while (!tokens.empty()) {
    const auto count = static_cast<std::size_t>(std::min(std::ssize(tokens), starts_[shard + 1] - first));
    if (count > 0) shards_[shard].read(first - starts_[shard], tokens.first(count));
    tokens = tokens.subspan(count);
    first = starts_[++shard];
  }
}

void ShardSet::read_window(std::int64_t first, std::span<std::int32_t> inputs,
                           std::span<std::int32_t> targets) const {
  std::vector<std::int32_t> window(inputs.size() + 1);
  read(first, window);
  std::copy(window.begin(), window.end() - 1, inputs.begin());
  std::copy(window.begin() + 1, window.end(), targets.begin());
}

std::string ShardSet::description() const {
  return std::to_string(shards_.size()) + (shards_.size() == 1 ? " shard '" : " shards '") + files_.pattern +
         "': " + std::to_string(tokens()) + " tokens";
}

std::string ShardSet::tokenizer() const { return metas_.empty() ? "" : metas_.begin()->second.tokenizer; }

std::string ShardSet::tokenizer_sha256() const {
  return metas_.empty() ? "" : metas_.begin()->second.tokenizer_sha256;
}

const std::vector<std::string>& ShardSet::samples() const {
  const std::lock_guard lock(samples_mutex_);
  if (samples_.empty()) {
    std::vector<std::string> read(shards_.size());
    for_each_in_parallel(read.size(), [&](std::size_t i) { read[i] = shards_[i].samples_checksum(); });
    samples_ = std::move(read);
  }
  return samples_;
}

std::vector<ShardRecord> ShardSet::records() const {
  const std::vector<std::string>& checksums = samples();
  std::vector<ShardRecord> records;
  records.reserve(shards_.size());
  for (std::size_t i = 0; i < shards_.size(); ++i)
    records.push_back({name_of(shards_[i]), shards_[i].tokens(), checksums[i], sha256_of(shards_[i])});
  return records;
}

std::string ShardSet::scan() const {
  const std::vector<std::string>& checksums = samples();
  ShardScan scan{.working_folder = working_folder_, .shards = {}, .metas = metas_};
  for (std::size_t i = 0; i < shards_.size(); ++i)
    scan.shards.push_back({shards_[i].path(), shards_[i].token_bytes(), shards_[i].tokens(), checksums[i]});
  return encode(scan);
}

std::vector<std::string> ShardSet::notes() const {
  if (!files_.files.empty()) return {};
  std::set<std::string> there;
  for (const Shard& shard : shards_) there.insert(shard.path());
  std::vector<std::string> notes;
  for (const auto& [folder, meta] : metas_) {
    std::vector<std::string> missing;
    for (const auto& [name, sha256] : meta.sha256) {
      const std::string path = folder == "." ? name : folder + "/" + name;
      const bool asked_for = ::fnmatch(files_.pattern.c_str(), path.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0;
      if (asked_for && !there.contains(path)) missing.push_back(path);
    }
    if (missing.empty()) continue;
    notes.push_back(
        "'" + missing.front() + "'" +
        (missing.size() == 1 ? " is" : " and " + std::to_string(missing.size() - 1) + " more are") +
        " missing: meta.json beside the shards lists more of them than there are");
  }
  return notes;
}

void ShardSet::check_all(const std::stop_token& stop) const {
  // On Linux, of this thread alone: training comes first where they share a core, but the check gets on.
  constexpr int nice = 10;
  ::setpriority(PRIO_PROCESS, 0, nice);
  for (auto i = static_cast<std::size_t>(files_.check_rank); i < shards_.size();
       i += static_cast<std::size_t>(files_.check_size)) {
    if (stop.stop_requested()) return;
    shards_[i].verify(sha256_of(shards_[i]), stop);
  }
}

}  // namespace goat
