// What the devices of ranks that train together must have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_choice.h"
#include "train/ranks/rank_group.h"

namespace goat {

DevicePlace place_of(const RankGroup& group);  // of this rank's device

// What a rank tells of its device. Of several GPUs: the same model, another GPU for each rank unless they may
// share one, and the same version of NCCL.
std::vector<Field> fields_of(const DeviceInfo& device, const std::string& nccl_version, bool share_gpu);

// Why ranks with such devices cannot train together; nothing if they can. Both are by rank.
std::optional<Failure> why_not_together(const std::vector<Peer>& peers,
                                        const std::vector<std::vector<Field>>& devices);

// The same of this run's ranks, which all call it. Loads NCCL where `device` is one of several GPUs. Throws
// OnAllRanks: a RanksError, also for devices that exchange through the memory of a host and are on several;
// or what loading NCCL throws.
void require_matching_devices(RankGroup& group, const Device& device);

}  // namespace goat
