// The communicator of several GPUs (kernels/cuda/communicator.cu) on the simulated GPU, whose NCCL is
// simulated too.
#ifdef GOAT_HAS_SIMT
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/open/open_communicator.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/communicator_contract.h"
#include "test/forked_ranks.h"
#include "test/operand.h"
#include "test/random_calls.h"
#include "test/scoped_options.h"

using namespace goat;
using namespace goat::test;
using on_simt::Streams;

namespace {
bool simt_is_tested() {
  const auto names = device_names();
  return std::find(names.begin(), names.end(), "simt") != names.end();
}

using Check = std::function<std::string(Device& device, Communicator& ranks)>;

// Reports of `size` ranks, each a process, that do `check`.
std::vector<std::string> reports_of(int size, const Check& check) {
  const std::string id = communicator_id("simt");
  ForkedRanks ranks(size, [&](int rank) {
    const auto device = open_device("simt");
    const auto communicator = open_communicator("simt", {id, rank, size});
    return check(*device, *communicator);
  });
  std::vector<std::string> reports;
  for (int r = 0; r < size; ++r) reports.push_back(ranks.report(r));
  return reports;
}

// On 1 to 4 ranks, with the work of streams at every time at which it may run.
void check_on_all(const std::function<std::string(Device&, Communicator&, std::uint64_t seed)>& check) {
  if (!simt_is_tested()) return;
  for (const Streams streams : {Streams::at_once, Streams::late, Streams::random})
    for (int size = 1; size <= 4; ++size) {
      RestoredOptions options;
      options->streams = streams;
      options->threads = 1;
      const std::uint64_t seed = options->seed = fresh_seed();
      INFO("streams " << static_cast<int>(streams) << ", " << size << " ranks, GOAT_TEST_SEED=" << seed);
      const auto reports =
          reports_of(size, [&](Device& device, Communicator& ranks) { return check(device, ranks, seed); });
      CHECK(reports == std::vector<std::string>(static_cast<std::size_t>(size)));
    }
}

std::string complaint_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}
}  // namespace

TEST_CASE("NCCL: random calls arrive in full, whenever the streams run") {
  check_on_all([](Device& device, Communicator& ranks, std::uint64_t seed) {
    return random_calls(device, ranks, nullptr, seed, reduced() ? 20 : 60, 3000);
  });
}

TEST_CASE("NCCL: sums are those of float64 within the rounding of any order") {
  check_on_all([](Device& device, Communicator& ranks, std::uint64_t seed) {
    return check_sums(device, ranks, seed, reduced() ? 3 : 10);
  });
}

TEST_CASE("NCCL: steps are right on one stream, and on two that events order") {
  check_on_all([](Device& device, Communicator& ranks, std::uint64_t) {
    const auto second = device.open_stream();
    return check_steps(device, device, ranks, 6) + check_steps(device, *second, ranks, 12);
  });
}

TEST_CASE("NCCL: parts of a split are in the order of their keys, and exchange in turn with the whole") {
  check_on_all([](Device& device, Communicator& ranks, std::uint64_t seed) {
    return check_splits(device, ranks, seed, reduced() ? 1 : 3);
  });
}

TEST_CASE("NCCL: recorded calls are made again by every replay, and counted once") {
  check_on_all([](Device& device, Communicator& ranks, std::uint64_t) {
    return ranks.can_capture() ? check_capture(device, ranks) : "calls cannot be recorded";
  });
}

TEST_CASE("NCCL: completed() counts up to the calls and not beyond, for any thread at any time") {
  check_on_all([](Device& device, Communicator& ranks, std::uint64_t) {
    const bool late = on_simt::options().streams == Streams::late;
    return check_count(device, ranks, 0, late) + check_count(device, ranks, 200, late);
  });
}

TEST_CASE("NCCL: wrong arguments are refused, and then everything") {
  check_on_all(
      [](Device& device, Communicator& ranks, std::uint64_t) { return check_refusals(device, ranks); });
}

TEST_CASE("NCCL: a device of another kind, and an id that is none, are refused") {
  if (!simt_is_tested()) return;
  const auto reports = reports_of(1, [](Device&, Communicator& ranks) {
    const auto cpu = open_device("cpu");
    return complaint_of([&] { ranks.broadcast(*cpu, nullptr, 0, 0); });
  });
  CHECK(reports.front() == "NCCL moves memory of a GPU: it cannot serve the device cpu");
  CHECK(complaint_of([] {
          open_communicator("simt", {"abc", 0, 2});
        }) == "open_communicator: the id has 3 bytes, 128 are expected");
  CHECK(complaint_of([] { communicator_id("cpu"); }) == "the device cpu has no communicator");
  CHECK(has_communicator("simt"));
  CHECK(!has_communicator("cpu"));
  CHECK(communicator_version("simt") == "2.28.9");
  if (has_communicator("cuda")) return;
  const std::string said = complaint_of([] { communicator_version("cuda"); });
  CHECK_THAT(said, ContainsSubstring("this build has no NCCL"));
  CHECK_THAT(said, ContainsSubstring("nvidia-nccl-cu13) and build again"));
}

TEST_CASE("NCCL: an error names the call, the rank and the source line, in NCCL's words") {
  if (!simt_is_tested()) return;
  const std::string said = complaint_of([] { open_communicator("simt", {communicator_id("simt"), 5, 2}); });
  CHECK_THAT(said,
             Catch::Matchers::StartsWith("NCCL: ncclCommInitRankConfig at rank 5 of 2: invalid argument"));
  CHECK_THAT(said, Catch::Matchers::Matches(".*rank 5 of 2 ranks.* at .*kernels/cuda/communicator.cu:\\d+"));
}

TEST_CASE("NCCL: an error of a call ends the communicator") {
  if (!simt_is_tested()) return;
  RestoredOptions options;
  options->nccl_failure = {0, 2, on_simt::NcclFault::error};
  const auto error_of = [](const std::function<void(Device&, Communicator&, float*)>& call) {
    return reports_of(2,
                      [&](Device& device, Communicator& ranks) {
                        const Operand memory = Operand::zeros(device, {1000}, "memory");
                        const auto make = [&] {
                          call(device, ranks, memory.tensor().as<float>());
                          device.synchronize();
                        };
                        const std::string first = complaint_of([&] {
                          make();
                          make();
                        });
                        return first == complaint_of(make) ? first : "another error follows: " + first;
                      })
        .front();
  };
  const std::string of_broadcast = error_of(
      [](Device& device, Communicator& ranks, float* data) { ranks.broadcast(device, data, 4000, 0); });
  CHECK_THAT(of_broadcast, Catch::Matchers::StartsWith("NCCL: ncclBroadcast at rank 0 of 2: "));
  CHECK_THAT(of_broadcast, Catch::Matchers::Matches(".* at .*kernels/cuda/communicator.cu:\\d+"));
  const std::string of_exchange = error_of([](Device& device, Communicator& ranks, float* data) {
    ranks.all_to_all(device, data, data + 500, 1000);
  });
  CHECK_THAT(of_exchange, Catch::Matchers::StartsWith("NCCL: ncclGroupEnd at rank 0 of 2: "));
}

TEST_CASE("NCCL: an error that comes after its call is told to any thread") {
  if (!simt_is_tested()) return;
  RestoredOptions options;
  options->nccl_failure = {0, 1, on_simt::NcclFault::async};
  options->streams = Streams::late;
  const auto told = reports_of(1, [](Device& device, Communicator& ranks) {
    void* const memory = device.allocate(4000);  // its release would wait for the call
    if (!ranks.trouble().empty()) return "trouble before any call: " + ranks.trouble();
    ranks.broadcast(device, memory, 4000, 0);
    for (int i = 0; i < 5000 && ranks.trouble().empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return ranks.trouble();
  });
  CHECK_THAT(told.front(), Catch::Matchers::StartsWith("NCCL: an error at rank 0 of 1: "));
}

TEST_CASE("NCCL: sums leave out NVLS unless the user has chosen an algorithm") {
  if (!simt_is_tested()) return;
  const auto algorithm_after = [](bool sums, const char* before) {
    ForkedRanks ranks(1, [&](int) {
      before ? setenv("NCCL_ALGO", before, 1) : unsetenv("NCCL_ALGO");
      open_communicator("simt", {communicator_id("simt"), 0, 1, sums});
      const char* const after = std::getenv("NCCL_ALGO");
      return std::string(after ? after : "none");
    });
    return ranks.report(0);
  };
  CHECK(algorithm_after(false, nullptr) == "none");
  CHECK(algorithm_after(true, nullptr) == "^NVLS");
  CHECK(algorithm_after(true, "Ring") == "Ring");
}
#endif
