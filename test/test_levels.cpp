// In how many levels the ranks of some hosts add.
#include "train/replicas/levels.h"

#include <string>
#include <vector>

#include "test/catch.h"
#include "train/ranks/ranks_error.h"

using namespace goat;

namespace {
// One letter a rank: its host.
std::vector<Peer> peers_on(const std::string& hosts) {
  std::vector<Peer> peers;
  for (const char host : hosts) {
    Peer& peer = peers.emplace_back();
    peer.rank = static_cast<int>(peers.size()) - 1;
    peer.host = std::string(1, host);
    peer.boot_id = "1";
  }
  number_nodes(peers);
  return peers;
}
}  // namespace

TEST_CASE("levels: hosts of equally many ranks add by themselves first where no bit changes") {
  for (const auto& [hosts, asked, nodes] : {std::tuple{"a", 0, 1},
                                            {"aaaa", 0, 1},
                                            {"aaaa", 2, 1},
                                            {"aabb", 0, 2},
                                            {"aabb", 1, 1},
                                            {"aabb", 2, 2},
                                            {"abcd", 0, 4},
                                            {"aaaabbbb", 0, 2},
                                            {"aabbcc", 0, 3},
                                            {"aaabbb", 2, 2},
                                            {"aaabbb", 1, 1}}) {
    INFO(hosts << ", distributed.levels = " << asked);
    const Levels levels = levels_of(peers_on(hosts), asked);
    CHECK(levels.nodes == nodes);
    CHECK(levels.note.empty() == (std::string(hosts) != "aaabbb" || asked == 1));
  }
}

TEST_CASE("levels: where they cannot, or would change bits, one level is taken and said") {
  for (const auto& [hosts, why] : {std::pair{"aab", "host a has 2 of the ranks, host b has 1"},
                                   {"abab", "ranks of host b are not numbered one after the other"},
                                   {"aaabbb", "3 ranks a host are no power of two"}}) {
    INFO(hosts);
    const Levels levels = levels_of(peers_on(hosts), 0);
    CHECK(levels.nodes == 1);
    CHECK_THAT(levels.note, ContainsSubstring(why));
  }
  CHECK_THAT(levels_of(peers_on("aaabbb"), 2).note, ContainsSubstring("up to rounding, not bit for bit"));
  CHECK_THROWS_AS(levels_of(peers_on("aab"), 2), RanksError);
  CHECK_THROWS_WITH(levels_of(peers_on("abab"), 2), ContainsSubstring("distributed.levels = 2") &&
                                                        ContainsSubstring("numbered host by host"));
}
