// In how many levels the gradients of all ranks are added.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/ranks/peer.h"

namespace goat {

struct Levels {
  int nodes = 1;     // as in Sharding
  std::string note;  // what the user should know; empty: nothing
};

// `asked` is distributed.levels. Two levels need nodes of equally many ranks, numbered one after the other.
// Without being asked for, they are taken only where the sums stay the same bits, which needs a power of two
// of ranks on each node. Throws RanksError if they are asked for in vain.
Levels levels_of(const std::vector<Peer>& peers, std::int64_t asked);

// Ranks of the simulated GPU, all on one host, as if they were on GOAT_SIMT_NODES hosts, numbered one after
// the other: for tests. Without that variable, as they are. Throws RanksError if it is no divisor of the
// ranks.
std::vector<Peer> on_simulated_nodes(std::vector<Peer> peers);

}  // namespace goat
