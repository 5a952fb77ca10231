#include "train/replicas/levels.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "train/ranks/ranks_error.h"

namespace goat {

namespace {
// Why the nodes cannot add by themselves first; empty if they can.
std::string obstacle(const std::vector<Peer>& peers, int nodes) {
  const auto on_first = std::ranges::count(peers, 0, &Peer::node);
  for (const Peer& peer : peers) {
    const auto on_this = std::ranges::count(peers, peer.node, &Peer::node);
    if (on_this != on_first)
      return "host " + peers.front().host + " has " + std::to_string(on_first) + " of the ranks, host " +
             peer.host + " has " + std::to_string(on_this);
  }
  const int each = static_cast<int>(peers.size()) / nodes;
  for (std::size_t rank = 0; rank < peers.size(); ++rank)
    if (peers[rank].node != static_cast<int>(rank) / each)
      return "the ranks of host " + peers[rank].host + " are not numbered one after the other";
  return "";
}
}  // namespace

Levels levels_of(const std::vector<Peer>& peers, std::int64_t asked) {
  const int nodes = std::ranges::max(peers, {}, &Peer::node).node + 1;
  if (nodes == 1 || asked == 1) return {};
  if (const std::string why = obstacle(peers, nodes); !why.empty()) {
    if (asked == 2)
      throw RanksError("distributed.levels = 2: " + why +
                           "; start equally many on each host, numbered host by host, or set it to 1",
                       2);
    return {1, "gradients are added in one level: " + why};
  }
  const int each = static_cast<int>(peers.size()) / nodes;
  if (std::has_single_bit(static_cast<unsigned>(each))) return {nodes, ""};
  const std::string why = std::to_string(each) + " ranks a host are no power of two";
  if (asked == 2)
    return {nodes, why +
                       ", and each host adds its own first: losses are those of other numbers of ranks up to "
                       "rounding, not bit for bit"};
  return {1, "gradients are added in one level, because " + why +
                 "; distributed.levels = 2 adds on each host first, which is faster, but other bits"};
}

std::vector<Peer> on_simulated_nodes(std::vector<Peer> peers) {
  const char* const text = std::getenv("GOAT_SIMT_NODES");
  if (!text || !*text) return peers;
  const int size = static_cast<int>(peers.size()), nodes = std::atoi(text);
  if (nodes < 1 || size % nodes != 0)
    throw RanksError("GOAT_SIMT_NODES=" + std::string(text) + ": a divisor of the " + std::to_string(size) +
                         " ranks is expected",
                     2);
  for (Peer& peer : peers) {
    peer.node = peer.rank / (size / nodes);
    peer.host += "-" + std::to_string(peer.node);
  }
  return peers;
}

}  // namespace goat
