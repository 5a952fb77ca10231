#include "train/ranks/peer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <utility>

namespace goat {

Peer own_peer() {
  Peer peer;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) peer.host = host.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> peer.boot_id;
  peer.pid = ::getpid();
  return peer;
}

void number_nodes(std::vector<Peer>& peers) {
  std::map<std::pair<std::string, std::string>, std::pair<int, int>> nodes;  // -> index, ranks so far
  for (Peer& peer : peers) {
    const auto index = static_cast<int>(nodes.size());
    auto& [node, ranks] = nodes.try_emplace({peer.host, peer.boot_id}, index, 0).first->second;
    peer.node = node;
    peer.local_rank = ranks++;
  }
}

std::string name_of(const Peer& peer) {
  return "rank " + std::to_string(peer.rank) + " (host " + peer.host + ", pid " + std::to_string(peer.pid) +
         ")";
}

std::string list_of(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (first ? ", " : "") + std::to_string(ranks[first]);
    if (last > first) text += (last == first + 1 ? ", " : "-") + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace goat
