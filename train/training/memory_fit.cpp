#include "train/training/memory_fit.h"

#include <algorithm>

#include "train/training/training_plan.h"

namespace goat {

namespace {
bool fits(Config config, const Device& device, std::int64_t micro_batch, std::size_t bytes, int ranks) {
  config.train.micro_batch = micro_batch;
  return TrainingPlan(config, device, 0, ranks).memory.total_bytes() <= bytes;
}
}  // namespace

Config with_recompute(Config config, const std::string& recompute) {
  config.model.recompute = recompute;
  if (recompute == "gelu") config.model.epilogue = "own";
  return config;
}

std::int64_t largest_micro_batch(const Config& config, const Device& device, std::size_t bytes, int ranks) {
  const std::int64_t leaf = config.leaf_sequences();
  for (std::int64_t size = leaf; size >= 1; --size)
    if (leaf % size == 0 && fits(config, device, size, bytes, ranks)) return size;
  return 0;
}

std::size_t usable_memory(const Device& device) {
  const std::size_t available = device.available_memory();
  return device.info().name == "cpu" ? available - available / 4 : usable_of(available);
}

int sharing_memory(const Device& device, int ranks) { return device.info().name == "cuda" ? 1 : ranks; }

int sharing_memory(const Device& device, const RankGroup& group) {
  const Peer& own = group.peers()[static_cast<std::size_t>(group.rank())];
  return sharing_memory(device, static_cast<int>(std::ranges::count(group.peers(), own.node, &Peer::node)));
}

std::size_t usable_share(const Device& device, const RankGroup& group) {
  return usable_memory(device) / static_cast<std::size_t>(sharing_memory(device, group));
}

std::size_t smallest_share(const Device& device, RankGroup& group) {
  std::size_t least = usable_share(device, group);
  for (const std::string& other : group.gather("the memory of the device", std::to_string(least)))
    least = std::min<std::size_t>(least, std::stoull(other));
  return least;
}

MicroBatchChoice choose_micro_batch(const Config& config, const Device& device, std::size_t bytes,
                                    std::int64_t before, int ranks) {
  const std::int64_t leaf = config.leaf_sequences();
  MicroBatchChoice choice{config, ""};
  std::int64_t& micro_batch = choice.config.train.micro_batch;
  if (micro_batch > 0 && leaf % micro_batch == 0) return choice;
  if (micro_batch > 0) {
    choice.origin = "the largest divisor of a leaf's " + std::to_string(leaf) +
                    " sequences that is not above train.micro_batch = " + std::to_string(micro_batch);
    micro_batch = largest_divisor(leaf, micro_batch);
  } else if (before > 0 && leaf % before == 0 && fits(config, device, before, bytes, ranks)) {
    choice.origin = "as before";
    micro_batch = before;
  } else {
    choice.origin = "the largest that fits";
    micro_batch = std::max<std::int64_t>(1, largest_micro_batch(config, device, bytes, ranks));
  }
  return choice;
}

// A smaller micro-batch costs less time than recomputing: it is tried first.
std::string setting_that_fits(const Config& config, const Device& device, std::size_t bytes, int ranks) {
  for (auto setting = std::ranges::find(recompute_settings, config.model.recompute);
       setting != recompute_settings.end(); ++setting) {
    const Config other = with_recompute(config, *setting);
    const std::int64_t micro_batch = largest_micro_batch(other, device, bytes, ranks);
    if (micro_batch == 0) continue;
    const auto changed = [](const char* key, const std::string& now, const std::string& was) {
      return now == was ? std::string() : std::string(" --set ") + key + "=" + now;
    };
    return "This fits: --set train.micro_batch=" + std::to_string(micro_batch) +
           changed("model.recompute", other.model.recompute, config.model.recompute) +
           changed("model.epilogue", other.model.epilogue, config.model.epilogue);
  }
  return "No micro-batch fits, even with model.recompute = \"block\"; make the model or data.seq_len smaller";
}

}  // namespace goat
