// Ranks: the processes that train one model together, as one of them sees the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "train/ranks/launch.h"
#include "train/ranks/rank_group.h"
#include "train/replicas/exchange.h"

namespace goat {

struct Ranks {
  std::unique_ptr<RankGroup> group;  // what is exchanged on the host
  Communicators communicators;       // what is exchanged between devices
  std::string note{};                // on how they are connected, for the user

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  int nodes() const { return communicators.nodes(); }  // see Sharding
  bool first() const { return rank() == 0; }  // the one that keeps the run folder and talks to the user
};

Ranks one_rank();  // of a process that trains alone

// Meets the other ranks of the launch (RankGroup), and connects their devices. Throws RanksError, for ranks
// of the cpu or simt device on several hosts too.
Ranks meet_ranks(const Launch& launch, std::vector<Field> fields, RankGroupOptions options,
                 const Device& device);

}  // namespace goat
