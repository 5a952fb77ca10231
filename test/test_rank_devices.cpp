// Which devices ranks may train with together.
#include "train/replicas/rank_devices.h"

#include "test/catch.h"

using namespace goat;

namespace {
struct RankDevice {
  std::string gpu = "H200, 132 SMs", uuid{}, nccl = "2.28.9", name = "cuda";
  bool share = false;
};

// Why ranks 0, 1, ... with these devices cannot train together.
std::string refusal_of(const std::vector<RankDevice>& devices) {
  std::vector<Peer> peers;
  std::vector<std::vector<Field>> fields;
  for (const RankDevice& device : devices) {
    Peer peer;
    peer.rank = static_cast<int>(peers.size());
    peer.host = peer.rank < 2 ? "a" : "b";
    peer.pid = 70 + peer.rank;
    peers.push_back(peer);
    fields.push_back(fields_of({device.name, device.gpu, 0, device.uuid}, device.nccl, device.share));
  }
  const auto failure = why_not_together(peers, fields);
  if (!failure) return "";
  CHECK(failure->code == 2);
  return failure->reason;
}
}  // namespace

TEST_CASE("rank devices: GPUs of one kind, another one for each rank, go together") {
  CHECK(refusal_of({{.uuid = "GPU-0"}, {.uuid = "GPU-1"}, {.uuid = "GPU-2"}}) == "");
  CHECK(refusal_of({{.name = "cpu"}, {.gpu = "another processor", .name = "cpu"}}) == "");
  CHECK(refusal_of({{.name = "simt"}, {.name = "simt"}}) == "");
}

TEST_CASE("rank devices: other kinds, GPUs and versions of NCCL are refused, naming ranks and values") {
  CHECK(refusal_of({{.name = "cpu"}, {.uuid = "GPU-1"}}) ==
        "rank 0 (host a, pid 70) and rank 1 (host a, pid 71) differ in device: rank 0 has 'cpu', rank 1 has "
        "'cuda'");
  CHECK(refusal_of({{.uuid = "GPU-0"}, {.uuid = "GPU-1"}, {.gpu = "H100, 132 SMs", .uuid = "GPU-2"}}) ==
        "rank 0 (host a, pid 70) and rank 2 (host b, pid 72) differ in kind of GPU: rank 0 has "
        "'H200, 132 SMs', rank 2 has 'H100, 132 SMs'");
  CHECK(refusal_of({{.uuid = "GPU-0"}, {.uuid = "GPU-1", .nccl = "2.30.7"}}) ==
        "rank 0 (host a, pid 70) and rank 1 (host a, pid 71) differ in NCCL: rank 0 has '2.28.9', rank 1 has "
        "'2.30.7'");
}

TEST_CASE("rank devices: two ranks on one GPU are refused by its UUID, unless they may share it") {
  CHECK(refusal_of({{.uuid = "GPU-0"}, {.uuid = "GPU-1"}, {.uuid = "GPU-1"}}) ==
        "rank 1 (host a, pid 71) and rank 2 (host b, pid 72) have the same GPU (GOAT_SHARE_GPU=1 lets ranks "
        "share one): 'GPU-1'");
  CHECK(refusal_of({{.uuid = "GPU-1", .share = true}, {.uuid = "GPU-1", .share = true}}) == "");
}

TEST_CASE("rank devices: a rank knows its place on its host") {
  RankGroupOptions options;
  options.self.local_rank = 0;
  const RankGroup alone(Launch{}, {}, options);
  CHECK(place_of(alone).rank_on_host == 0);
  CHECK(place_of(alone).ranks_on_host == 1);
}
