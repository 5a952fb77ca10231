// Ranks: the processes that train one model together, as one of them sees the others.
#pragma once

#include <memory>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/device.h"
#include "train/ranks/launch.h"
#include "train/ranks/rank_group.h"

namespace goat {

struct Ranks {
  std::unique_ptr<RankGroup> group;            // what is exchanged on the host
  std::unique_ptr<Communicator> communicator;  // what is exchanged between devices

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  bool first() const { return rank() == 0; }  // the one that keeps the run folder and talks to the user
};

Ranks one_rank();  // of a process that trains alone

// Meets the other ranks of the launch (RankGroup), and connects their devices. Throws RanksError, for ranks
// of the cpu or simt device on several hosts too.
Ranks meet_ranks(const Launch& launch, std::vector<Field> fields, RankGroupOptions options,
                 const Device& device);

}  // namespace goat
