#include "data/shard_source.h"

#include <algorithm>
#include <stdexcept>

#include "data/permutation.h"
#include "kernels/philox.h"

namespace goat {
namespace {

const ShardOptions& checked(const ShardOptions& options) {
  if (options.seq_len < 1)
    throw std::invalid_argument("ShardSource: seq_len " + std::to_string(options.seq_len) +
                                ", must be at least 1");
  if (options.bos_block && (options.bos < 0 || options.bos >= options.vocab)) {
    throw std::invalid_argument("ShardSource: bos " + std::to_string(options.bos) +
                                ", must lie in [0, vocab = " + std::to_string(options.vocab) + ")");
  }
  return options;
}

}  // namespace

ShardSource::ShardSource(const ShardOptions& options)
    : options_(checked(options)),
      set_({options.pattern, options.vocab, options.advice, options.files, options.scan, options.check_rank,
            options.check_size}) {
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
}

std::string ShardSource::description() const {
  return set_.description() + ", " + std::to_string(blocks_) + (options_.bos_block ? " block" : " window") +
         (blocks_ == 1 ? "" : "s") + " of " + std::to_string(options_.seq_len) +
         (options_.shuffle ? ", shuffled" : ", in order");
}

std::vector<std::string> ShardSource::notes() const {
  std::vector<std::string> notes = set_.notes();
  for (const auto& [folder, meta] : set_.metas())
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
  require_length("ShardSource", options_.seq_len, inputs, targets);
  if (!options_.bos_block) {
    set_.read_window(block_start(index), inputs, targets);
    return;
  }
  set_.read(block_start(index), targets);
  inputs[0] = options_.bos;
  std::copy(targets.begin(), targets.end() - 1, inputs.begin() + 1);
}

}  // namespace goat
