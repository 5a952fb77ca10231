#include "data/crop_source.h"

#include <algorithm>
#include <stdexcept>

#include "data/permutation.h"
#include "kernels/philox.h"

namespace goat {
namespace {

const CropOptions& checked(const CropOptions& options) {
  if (options.seq_len < 1)
    throw std::invalid_argument("CropSource: seq_len " + std::to_string(options.seq_len) +
                                ", must be at least 1");
  if (options.seq_len >= options.record_tokens)
    throw DataError("a sequence of " + std::to_string(options.seq_len) +
                    " tokens and its next one do not fit in a record of data.record_tokens = " +
                    std::to_string(options.record_tokens) + ": take shorter sequences");
  return options;
}

}  // namespace

CropSource::CropSource(const CropOptions& options)
    : options_(checked(options)),
      set_({options.pattern, options.vocab, options.advice, options.files, options.scan, options.check_rank,
            options.check_size}) {
  check_records();
  records_ = static_cast<std::uint64_t>(set_.tokens() / options_.record_tokens);
  if (records_ == 0) throw DataError("the shards matching '" + options_.pattern + "' hold no record");
}

void CropSource::check_records() const {
  const std::int64_t record = options_.record_tokens;
  const std::string key = "data.record_tokens = " + std::to_string(record);
  for (const auto& [folder, meta] : set_.metas())
    if (meta.record_tokens && *meta.record_tokens != record)
      throw DataError("the shards in '" + folder + "' hold records of " +
                      std::to_string(*meta.record_tokens) + " tokens (meta.json), but " + key +
                      ": set it to " + std::to_string(*meta.record_tokens));
  for (const Shard& shard : set_.shards())
    if (shard.tokens() % record != 0)
      throw DataError("token shard '" + shard.path() + "': its " + std::to_string(shard.tokens()) +
                      " tokens are no whole number of records of " + key +
                      ": set it to the length with which the shards were prepared");
}

std::string CropSource::description() const {
  return set_.description() + ", crops of " + std::to_string(options_.seq_len) + " from " +
         std::to_string(records_) + (records_ == 1 ? " record of " : " records of ") +
         std::to_string(options_.record_tokens) + (options_.shuffle ? ", shuffled" : ", in order");
}

std::int64_t CropSource::crop_start(std::uint64_t index) const {
  const std::uint64_t epoch = index / records_, position = index % records_;
  const std::int64_t length = options_.record_tokens;
  if (!options_.shuffle) return static_cast<std::int64_t>(position) * length;
  const std::uint64_t record = Permutation(records_, options_.seed, epoch)(position);
  const PhiloxBlock key = philox(options_.seed, RandomStream::shuffle, epoch, 2);
  const PhiloxBlock words = philox4x32(
      {static_cast<std::uint32_t>(record), static_cast<std::uint32_t>(record >> 32), 0, 0}, {key[0], key[1]});
  const auto offsets = static_cast<double>(length - options_.seq_len);
  return static_cast<std::int64_t>(record) * length + static_cast<std::int64_t>(uniform(words[0]) * offsets);
}

void CropSource::read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
  require_length("CropSource", options_.seq_len, inputs, targets);
  set_.read_window(crop_start(index), inputs, targets);
}

}  // namespace goat
