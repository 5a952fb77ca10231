// Which micro-batch and model.recompute fit into a device's memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/ranks/rank_group.h"

namespace goat {

// The values of model.recompute. Each needs less memory, and more time, than the one before.
inline constexpr std::array recompute_settings = {"none", "gelu", "block"};
// recompute = gelu excludes epilogue = library, and sets it to own.
Config with_recompute(Config config, const std::string& recompute);

// The largest divisor of a leaf's sequences with which a training run of so many ranks needs at most `bytes`
// on each; 0 if one sequence needs more.
std::int64_t largest_micro_batch(const Config& config, const Device& device, std::size_t bytes,
                                 int ranks = 1);

// What a run takes by itself of so much memory. The rest is left to the CUDA context, recorded graphs and
// libraries.
constexpr std::size_t usable_of(std::size_t bytes) { return bytes - bytes / 32; }
// Of the device's available memory. On the cpu, other programs and the files that are read share it.
std::size_t usable_memory(const Device& device);
// Of `ranks` on one host, those that share the device's memory.
int sharing_memory(const Device& device, int ranks);
int sharing_memory(const Device& device, const RankGroup& group);  // with this rank
// This rank's share of what is usable.
std::size_t usable_share(const Device& device, const RankGroup& group);
// The smallest share of all ranks; all call it.
std::size_t smallest_share(const Device& device, RankGroup& group);

// `config` with a micro-batch that divides a leaf, and where that comes from: "the largest that fits", "as
// before", or why it is smaller than the config's; empty if it is the config's.
struct MicroBatchChoice {
  Config config;
  std::string origin;
};
// `before` is the run's micro-batch so far; 0: none. It is kept if it divides the leaf and fits into `bytes`
// on each of the ranks; otherwise the largest that fits is taken, or 1 if none does.
MicroBatchChoice choose_micro_batch(const Config& config, const Device& device, std::size_t bytes,
                                    std::int64_t before = 0, int ranks = 1);

// A sentence without its full stop: the setting nearest to `config` that needs at most `bytes` on each rank.
std::string setting_that_fits(const Config& config, const Device& device, std::size_t bytes, int ranks = 1);

}  // namespace goat
