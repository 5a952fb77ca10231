#include "train/replicas/leaves.h"

#include <bit>

#include "train/config/counted.h"

namespace goat {

Config with_leaves(Config config, int ranks, std::int64_t before) {
  std::int64_t& leaves = config.distributed.leaves;
  const bool given = leaves > 0;
  if (!given) leaves = before > 0 && before % ranks == 0 && config.train.batch % before == 0 ? before : ranks;
  const std::string count = "distributed.leaves = " + std::to_string(leaves);
  if (leaves % ranks != 0)
    throw ConfigError(count + " cannot be shared evenly by " + counted(ranks, "rank") +
                      "; set it to a multiple of the ranks that divides train.batch = " +
                      std::to_string(config.train.batch));
  if (config.train.batch % leaves != 0)
    throw ConfigError("train.batch = " + std::to_string(config.train.batch) + " cannot be cut into " +
                      (given ? count : counted(ranks, "leaf", "leaves") + ", one a rank") +
                      "; set train.batch to a multiple of " + std::to_string(leaves) +
                      (given ? ", or distributed.leaves to a divisor of it" : ", or start fewer ranks"));
  return config;
}

std::vector<std::string> notes_on_sums(const Config& config, int ranks) {
  if (ranks == 1) return {};
  std::vector<std::string> notes;
  const std::string differ = "losses are those of other numbers of ranks up to rounding, not bit for bit";
  if (!std::has_single_bit(static_cast<std::uint64_t>(config.leaves() / ranks)))
    notes.push_back("each of " + counted(ranks, "rank") + " adds " +
                    counted(config.leaves() / ranks, "leaf", "leaves") + ", no power of two: " + differ);
  if (config.library_adds())
    notes.push_back("distributed.reduce = \"nccl\" adds in an order of its own: " + differ);
  if (config.distributed.wire == "bf16")
    notes.push_back("distributed.wire = \"bf16\" rounds gradients before they travel: " + differ);
  return notes;
}

}  // namespace goat
