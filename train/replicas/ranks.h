// Ranks: the processes that train one model together, as one of them sees the others.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
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

// An exception that all ranks throw together, so that none waits for another one.
struct ThrownOnAllRanks {
  virtual ~ThrownOnAllRanks() = default;
};
template <class Error>
struct OnAllRanks final : Error, ThrownOnAllRanks {
  using Error::Error;
};
inline bool thrown_on_all_ranks(const std::exception& error) {
  return dynamic_cast<const ThrownOnAllRanks*>(&error) != nullptr;
}

// What every rank says, by rank, on all ranks. If `say` throws on a rank (ConfigError, DataError, any other
// exception as std::runtime_error), that is thrown on all ranks, as ThrownOnAllRanks too; the others put the
// name of that rank first.
std::vector<std::string> from_all(RankGroup& group, std::string_view what,
                                  const std::function<std::string()>& say);
// The same of rank 0 alone, without its name.
std::string from_first(RankGroup& group, std::string_view what, const std::function<std::string()>& say);

}  // namespace goat
