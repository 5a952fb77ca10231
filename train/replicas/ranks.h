// Ranks: the processes that train one model together, as one of them sees the others.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/device_choice.h"
#include "train/ranks/launch.h"
#include "train/ranks/rank_group.h"
#include "train/replicas/exchange.h"

namespace goat {

class SharedName;  // of the ranks' shared memory, while it has one

struct Ranks {
  std::unique_ptr<RankGroup> group;           // what is exchanged on the host
  Communicators communicators;                // what is exchanged between devices, after connect_ranks()
  std::shared_ptr<SharedName> shared_name{};  // which a failure of the run removes
  std::string note{};                         // on how the devices are connected, for the user

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  int nodes() const { return communicators.nodes(); }  // see Sharding
  bool first() const { return rank() == 0; }  // the one that keeps the run folder and talks to the user
};

Ranks one_rank();  // of a process that trains alone

// Meets the other ranks of the launch (RankGroup). Throws RanksError.
Ranks meet_ranks(const Launch& launch, std::vector<Field> fields, RankGroupOptions options);

struct Connection {
  bool library_adds = false;  // see ExchangeOptions
  std::int64_t levels = 0;    // see levels_of()
};

// Opens the device of this rank by `open`, which is told which of its host's ranks it is, and connects it
// with those of the other ranks. The device must outlive the ranks. Throws on all ranks what `open` throws on
// some, and what require_matching_devices() does; any other failure ends the run.
void connect_ranks(Ranks& ranks, const Connection& connection,
                   const std::function<Device&(const DevicePlace&)>& open);

}  // namespace goat
