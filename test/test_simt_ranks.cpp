// Steps of several ranks on the simulated GPU, which exchange while they compute: the same bits as those of
// one rank whatever runs first, and no wait of the host.
#include <bit>
#include <sstream>

#include "kernels/open/open_device.h"
#include "kernels/simt/options.h"
#include "test/catch.h"
#include "test/forked_ranks.h"
#include "test/rank_threads.h"
#include "test/scoped_options.h"
#include "train/replicas/ranks.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::on_simt::Streams;
using goat::test::ForkedRanks;

namespace {

using Settings = std::vector<std::string>;

// Two buckets of matrices: the first leaves when half of the backward pass is done.
Config config_of(const Settings& settings) {
  Settings all = {"model.layers=6",   "model.heads=2",       "model.width=64",          "model.vocab=500",
                  "prior.pos_rank=1", "prior.abs_rank=2",    "data.seq_len=6",          "train.batch=4",
                  "train.steps=3",    "train.micro_batch=1", "distributed.leaves=4",    "train.warmup=1",
                  "train.lr=0.02",    "eval.tokens=0",       "distributed.bucket_mib=1"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("copy_mixture", all);
}

std::uint64_t sum_of_bits(Device& device, const Tensor& array, std::int64_t elements) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(elements) * size_of(array.dtype));
  device.download(bytes.data(), array.data, bytes.size());
  std::uint64_t sum = 0;
  for (const unsigned char byte : bytes) sum = std::rotl(sum, 7) * 31 + byte;
  return sum;
}

struct Ran {
  std::string bits;   // of the losses and gradient norms of all steps, and of the weights
  std::string waits;  // of the host, in each step
};

Ran train(const Config& config, Ranks& ranks, Device& device) {
  const auto training = open_training_source(config);
  Trainer trainer(config, device, *training, nullptr, {}, &ranks);
  trainer.allocate();
  trainer.initialize();
  std::ostringstream bits, waits;
  const auto add = [&](const std::optional<StepResult>& result) {
    if (result)
      bits << std::hexfloat << result->scalars.loss << " " << result->scalars.grad_norm << " "
           << result->scalars.skip_update << "\n";
  };
  while (!trainer.finished()) {
    const std::uint64_t before = on_simt::counters().host_waits;
    add(trainer.step());
    waits << on_simt::counters().host_waits - before << " ";
  }
  add(trainer.finish_step());
  for (const auto& group : trainer.parameters().groups())
    bits << sum_of_bits(device, group.value, group.elements) << " ";
  return {bits.str(), waits.str()};
}

struct Policy {
  Streams streams = Streams::at_once;
  std::uint64_t seed = 1;
};

// What each of so many ranks reports of the run. `told` picks it.
std::vector<std::string> run(int size, const Settings& settings, std::string Ran::*told,
                             const std::vector<Policy>& policies = {{}}) {
  const int port = goat::test::free_port();
  ForkedRanks forked(size, [&](int rank) {
    on_simt::options().threads = 1;
    const Policy& policy = policies[static_cast<std::size_t>(rank) % policies.size()];
    on_simt::options().streams = policy.streams;
    on_simt::options().seed = policy.seed;
    const auto device = open_device("simt");
    goat::test::RankSetup setup{goat::test::launch_of_rank(rank, size, port)};
    setup.options.limits = {};
    Ranks ranks = meet_ranks(setup.launch, setup.fields, setup.options);
    connect_ranks(ranks, {}, [&](const DevicePlace&) -> Device& { return *device; });
    const Ran ran = train(config_of(settings), ranks, *device);
    ranks.group->finish();
    return ran.*told;
  });
  std::vector<std::string> reports;
  for (int rank = 0; rank < size; ++rank) reports.push_back(forked.report(rank));
  return reports;
}

void check_same(const Settings& settings, int size, const std::vector<Policy>& policies = {{}}) {
  const std::string want = run(1, settings, &Ran::bits).front();
  REQUIRE(std::ranges::count(want, '\n') == 3);
  for (const std::string& bits : run(size, settings, &Ran::bits, policies)) CHECK(bits == want);
}

}  // namespace

TEST_CASE("ranks on the simulated GPU: the bits of one rank, with overlap and without, recorded or not") {
  for (const Settings& settings : std::vector<Settings>{
           {},
           {"distributed.overlap=false"},
           {"train.cuda_graph=on"},
           {"train.cuda_graph=off", "model.block=llama", "model.attention=rope", "model.tied=false"}}) {
    INFO((settings.empty() ? "as it comes" : settings.front()));
    check_same(settings, 2);
  }
}

TEST_CASE("ranks on the simulated GPU: the bits of one rank whatever runs first") {
  const std::vector<Policy> policies = {
      {Streams::late}, {Streams::urgent_first}, {Streams::random, 1}, {Streams::random, 2}};
  for (const Policy& policy : policies) check_same({}, 2, {policy});
  check_same({}, 2, {{Streams::at_once}, {Streams::late}});
  check_same({}, 4, {{Streams::late}, {Streams::random, 3}, {Streams::at_once}, {Streams::random, 4}});
}

TEST_CASE("ranks on the simulated GPU: the host waits once a step, for the scalars of the step before") {
  for (const char* overlap : {"distributed.overlap=true", "distributed.overlap=false"})
    for (const std::string& waits : run(2, {overlap}, &Ran::waits)) CHECK(waits == "0 1 1 ");
}
