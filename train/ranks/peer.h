// The ranks of a run as each of them knows them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace goat {

struct Peer {
  int rank = 0;
  std::string host, boot_id;  // one machine is one pair
  std::int64_t pid = 0;
  int node = 0, local_rank = 0;  // nodes are numbered as their first ranks are
};

Peer own_peer();                        // rank, node and local_rank are 0
void number_nodes(std::vector<Peer>&);  // sets node and local_rank; peers stand in the order of their ranks
std::string name_of(const Peer& peer);  // rank 1 (host a, pid 77)
std::string list_of(std::vector<int> ranks);  // rank 3; ranks 1-3, 7

}  // namespace goat
