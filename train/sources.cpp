#include "train/sources.h"

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

std::unique_ptr<TokenSource> open_shards(const Config& config, const std::string& pattern, bool shuffle) {
  return std::make_unique<ShardSource>(ShardOptions{.pattern = pattern,
                                                    .seq_len = config.data.seq_len,
                                                    .bos_block = config.data.block == "bos",
                                                    .bos = static_cast<std::int32_t>(config.data.bos),
                                                    .vocab = config.model.vocab,
                                                    .shuffle = shuffle,
                                                    .seed = static_cast<std::uint64_t>(config.train.seed)});
}
}  // namespace

std::unique_ptr<TokenSource> open_training_source(const Config& config) {
  if (config.data.source == "copy_mixture") return open_copy_mixture(config, false);
  return open_shards(config, config.data.train, true);
}

std::unique_ptr<TokenSource> open_validation_source(const Config& config) {
  if (config.eval.batches == 0) return nullptr;
  if (config.data.source == "copy_mixture") return open_copy_mixture(config, true);
  return config.data.val.empty() ? nullptr : open_shards(config, config.data.val, false);
}

}  // namespace goat
