// What the communicator of several GPUs promises, tried on real NCCL, or on the simulated one:
//   nccl_ranks [--ranks N] [--device cuda|simt] [--calls N] [--most BYTES] [--seed N]
// Starts N ranks on this host; without --ranks it is one of those that a launcher starts (RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT; docs/ranks.md). Rank 0 prints one line. Exit code 0 if all holds.
// GOAT_SHARE_GPU=1 lets ranks share a GPU; whether NCCL does is NCCL's matter.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/open/open_communicator.h"
#include "kernels/open/open_device.h"
#include "test/communicator_contract.h"
#include "test/operand.h"
#include "test/random_calls.h"
#include "train/ranks/local_launcher.h"
#include "train/ranks/ranks_error.h"
#include "train/replicas/ranks.h"

namespace {

using goat::Communicator;
using goat::Device;
using Settings = std::map<std::string, std::string>;

Settings settings_of(int argc, char** argv) {
  Settings settings = {{"--ranks", "0"},
                       {"--device", "cuda"},
                       {"--calls", "400"},
                       {"--most", "1000000"},
                       {"--seed", std::to_string(goat::test::fresh_seed())}};
  for (int i = 1; i < argc; i += 2) {
    if (!settings.contains(argv[i]) || i + 1 == argc)
      throw goat::RanksError(
          "nccl_ranks [--ranks N] [--device cuda|simt] [--calls N] [--most BYTES] [--seed N]", 2);
    settings[argv[i]] = argv[i + 1];
  }
  return settings;
}

// Every part of the contract with the name of what holds; the last one spoils the communicator.
std::string check_all(Device& device, Communicator& ranks, const Settings& settings, std::uint64_t seed) {
  const int calls = std::stoi(settings.at("--calls"));
  const auto second = device.open_stream();
  using namespace goat::test;
  const std::vector<std::pair<const char*, std::function<std::string()>>> checks = {
      {"calls",
       [&] { return random_calls(device, ranks, nullptr, seed, calls, std::stoull(settings.at("--most"))); }},
      {"sums", [&] { return check_sums(device, ranks, seed, calls / 10); }},
      {"steps", [&] { return check_steps(device, device, ranks, calls / 10); }},
      {"steps of two streams", [&] { return check_steps(device, *second, ranks, calls / 10); }},
      {"splits", [&] { return check_splits(device, ranks, seed, 3); }},
      {"recorded calls", [&] { return check_capture(device, ranks); }},
      {"the count of calls", [&] { return check_count(device, ranks, calls, false); }},
      {"refusals", [&] { return check_refusals(device, ranks); }}};
  std::string faults;
  for (const auto& [what, check] : checks)
    if (const std::string fault = check(); !fault.empty()) faults += std::string(what) + ": " + fault;
  return faults;
}

int take_part(const goat::Launch& launch, const Settings& settings) {
  const std::string name = settings.at("--device");
  std::unique_ptr<Device> device;  // outlives the ranks
  goat::Ranks ranks =
      goat::meet_ranks(launch, {{"calls", settings.at("--calls")}, {"most", settings.at("--most")}}, {});
  goat::connect_ranks(ranks, {.library_adds = true}, [&](const goat::DevicePlace& place) -> Device& {
    device = goat::open_device(name, nullptr, place);
    return *device;
  });
  if (ranks.size() == 1)
    ranks.communicators.world = goat::open_communicator(name, {goat::communicator_id(name), 0, 1});
  const std::uint64_t seed = std::stoull(ranks.group->gather("the seed", settings.at("--seed")).front());
  std::string faults;
  try {
    faults = ranks.group->agree("faults", check_all(*device, *ranks.communicators.world, settings, seed));
  } catch (const std::exception& error) {
    ranks.group->fail(error.what(), 1);
    throw;
  }
  if (ranks.first())
    std::printf("nccl_ranks: %d ranks of %s (%s), NCCL %s, seed %llu: %s\n", ranks.size(), name.c_str(),
                device->info().description.c_str(), goat::communicator_version(name).c_str(),
                static_cast<unsigned long long>(seed),
                faults.empty()
                    ? "calls, sums, steps on one and two streams, splits, recorded calls, counts and "
                      "refusals are right"
                    : faults.c_str());
  ranks.group->finish();
  return faults.empty() ? 0 : 1;
}

int start_copies(int ranks, int argc, char** argv) {
  goat::LocalLaunch local;
  local.ranks = ranks;
  local.command.assign(argv, argv + argc);
  local.command.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return goat::run_ranks_here(local, goat::without_launch(goat::environment_of_process()));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Settings settings = settings_of(argc, argv);
    const goat::Environment environment = goat::environment_of_process();
    const int ranks = std::stoi(settings.at("--ranks"));
    if (ranks > 1 && !goat::started_here(environment)) return start_copies(ranks, argc, argv);
    return take_part(goat::launch_of(environment), settings);
  } catch (const goat::RanksError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
