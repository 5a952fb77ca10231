#include "train/replicas/rank_devices.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include "kernels/open/open_communicator.h"
#include "train/config/config.h"
#include "train/ranks/hello_check.h"
#include "train/ranks/ranks_error.h"
#include "train/replicas/on_all_ranks.h"

namespace goat {

namespace {
bool may_share_gpu() {
  const char* const value = std::getenv("GOAT_SHARE_GPU");
  return value && std::string_view(value) == "1";
}

std::string nccl_for(const std::string& device) {
  if (device != "cuda") return "";
  try {
    return communicator_version(device);
  } catch (const std::invalid_argument& error) {  // this build has none
    throw ConfigError(error.what());
  }
}

// How a rank tells the others its fields.
std::string encoded(const std::vector<Field>& fields) {
  return encode(Hello{.job = "", .size = 1, .peer = {}, .fields = fields});
}

void require_one_host(const RankGroup& group, const std::string& device) {
  std::set<std::string> hosts;
  for (const Peer& peer : group.peers()) hosts.insert(peer.host);
  if (group.peers().back().node == 0 && hosts.size() == 1) return;
  std::string names;
  for (const std::string& host : hosts) names += (names.empty() ? "" : ", ") + host;
  throw OnAllRanks<RanksError>("the ranks are on several hosts (" + names + "), but those of the " + device +
                                   " device exchange their data through the memory of one host; start all "
                                   "ranks on one host (--ranks N)",
                               2);
}
}  // namespace

DevicePlace place_of(const RankGroup& group) {
  const Peer& own = group.peers()[static_cast<std::size_t>(group.rank())];
  return {own.local_rank, static_cast<int>(std::ranges::count(group.peers(), own.node, &Peer::node))};
}

std::vector<Field> fields_of(const DeviceInfo& device, const std::string& nccl_version, bool share_gpu) {
  std::vector<Field> fields = {{"device", device.name}};
  if (device.name != "cuda") return fields;
  fields.push_back({"kind of GPU", device.description});
  fields.push_back({"NCCL", nccl_version});
  fields.push_back(
      {"GPU (GOAT_SHARE_GPU=1 lets ranks share one)", share_gpu ? "" : device.uuid, Field::Rule::distinct});
  return fields;
}

std::optional<Failure> why_not_together(const std::vector<Peer>& peers,
                                        const std::vector<std::vector<Field>>& devices) {
  std::vector<Hello> hellos;
  for (std::size_t rank = 0; rank < peers.size(); ++rank)
    hellos.push_back({"", static_cast<std::int32_t>(peers.size()), peers[rank], devices[rank]});
  std::vector<const Hello*> before = {&hellos.front()};
  for (std::size_t rank = 1; rank < hellos.size(); ++rank) {
    if (auto failure = why_not(hellos[rank], before)) return failure;
    before.push_back(&hellos[rank]);
  }
  return std::nullopt;
}

void require_matching_devices(RankGroup& group, const Device& device) {
  const std::string name = device.info().name;
  std::vector<std::vector<Field>> devices;
  for (const std::string& text : on_all_ranks(group, "what the device is", [&] {
         return encoded(fields_of(device.info(), nccl_for(name), may_share_gpu()));
       }))
    devices.push_back(decode_hello(text).fields);
  if (const auto failure = why_not_together(group.peers(), devices))
    throw OnAllRanks<RanksError>(failure->reason, failure->code);
  if (name != "cuda") require_one_host(group, name);
}

}  // namespace goat
