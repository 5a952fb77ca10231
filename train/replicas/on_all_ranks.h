// Work that succeeds on all ranks or fails on all of them. All ranks call these together, with the same
// `what` (see RankGroup::gather). None of them waits for a rank that has thrown.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "train/ranks/rank_group.h"

namespace goat {

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

// Calls `act` on every rank and returns every rank's result, by rank. Where it throws on some, all ranks
// throw what the first of them did (ConfigError, DataError, else std::runtime_error), with a text that names
// these ranks and their reasons, and OnAllRanks as its type. A rank whose device is lost throws DeviceLost
// instead. A single rank throws what `act` does.
std::vector<std::string> on_all_ranks(RankGroup& group, std::string_view what,
                                      const std::function<std::string()>& act);

// Calls `act` on rank 0 alone and returns its result on all ranks. What it throws, all ranks throw: a
// ConfigError, DataError or else a std::runtime_error of the same text.
std::string on_rank_0(RankGroup& group, std::string_view what, const std::function<std::string()>& act);

}  // namespace goat
