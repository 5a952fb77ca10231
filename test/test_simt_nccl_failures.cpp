// The simulated NCCL when ranks end, abort or wait for ever, and the failures that its options plant.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/simt/nccl.h"
#include "test/nccl_ranks.h"
#include "test/simulated.h"

using namespace goat;
using namespace goat::on_simt;
using namespace goat::test;
using std::chrono::milliseconds;

namespace {
using Clock = std::chrono::steady_clock;
constexpr Where here = Where::current();

// Megabytes: many parts.
struct Buffers {
  static constexpr std::size_t count = 1 << 20;
  DeviceArray<float> send{std::vector<float>(count, 1.0f)}, receive{3 * count};
};
ncclResult_t gather(NcclRank& own, const Buffers& b, std::size_t count = Buffers::count) {
  return ncclAllGather(b.send, b.receive, count, ncclFloat32, own.comm, own.stream, here);
}

std::string async_error(NcclRank& own) {
  ncclResult_t state = ncclInProgress;
  require(ncclCommGetAsyncError(own.comm, &state));
  return ncclGetErrorString(state);
}

// What is thrown: "RankLost 1: ...", "thrown: ...", or "".
std::string thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const RankLost& error) {
    return "RankLost " + std::to_string(error.rank) + ": " + error.what();
  } catch (const std::exception& error) {
    return std::string("thrown: ") + error.what();
  }
  return "";
}

// A gather among three, and what it throws; then the state that ncclCommGetAsyncError tells, and what the
// next call returns.
std::string gather_among_three(NcclRank& own) {
  const Buffers b;
  const std::string text = thrown_by([&] {
    require(gather(own, b));
    runtime::synchronize(own.stream);
  });
  const std::string state = async_error(own);
  return text + "; " + state + "; " + error_of(gather(own, b));
}

void set_failure(RestoredOptions& options, int rank, std::uint64_t call, NcclFault fault) {
  options->nccl_failure = {rank, call, fault};
}
}  // namespace

TEST_CASE("nccl: a rank that dies in the middle of a transfer is named to those who wait for the stream") {
  for (const Streams streams : {Streams::at_once, Streams::late, Streams::random}) {
    RestoredOptions options;
    options->streams = streams;
    set_failure(options, 1, 1, NcclFault::death);
    ForkedRanks ranks(3, with_communicator(3, gather_among_three));
    CHECK(ranks.report(1) == "");  // killed
    for (const int r : {0, 2}) {
      const std::string report = ranks.report(r);
      CHECK_THAT(report,
                 ContainsSubstring("RankLost 1: rank 1 (" + ranks.process_of(1) + ") has ended; rank ") &&
                     ContainsSubstring("waited for it in ncclAllGather (" + text_of(here) + ")") &&
                     ContainsSubstring("; another rank has ended or failed; another rank has ended or "
                                       "failed: simt: rank " +
                                       std::to_string(r) + " of 3, ncclAllGather (" + text_of(here) +
                                       "): its communicator has failed: rank 1"));
    }
  }
}

TEST_CASE("nccl: ranks that end or leave before their call") {
  for (const bool leaves : {true, false}) {
    ForkedRanks ranks(3, with_communicator(3, [&](NcclRank& own) {
                        if (own.rank != 1) return gather_among_three(own);
                        if (leaves) require(ncclCommDestroy(own.comm));
                        if (leaves) std::this_thread::sleep_for(milliseconds(300));
                        return std::string();
                      }));
    for (const int r : {0, 2})
      CHECK_THAT(ranks.report(r),
                 ContainsSubstring("RankLost 1: rank 1 (" + ranks.process_of(1) +
                                   (leaves ? ") has left its communicator; rank " : ") has ended; rank ")));
  }
}

TEST_CASE("nccl: a rank that fails on the way tells the others why") {
  RestoredOptions options;
  options->streams = Streams::late;
  ForkedRanks ranks(
      2, with_communicator(2, [](NcclRank& own) {
        const Buffers b;
        void* memory = runtime::allocate(4);
        runtime::begin_capture(own.stream);
        require(ncclAllGather(own.rank == 1 ? static_cast<float*>(memory) : b.send.operator float*(),
                              b.receive, 1, ncclFloat32, own.comm, own.stream, here));
        const Graph graph = runtime::end_capture(own.stream);
        runtime::release(memory);
        const std::string text = thrown_by([&] {
          runtime::replay(graph, own.stream);
          runtime::synchronize(own.stream);
        });
        return text + "; " + async_error(own);
      }));
  const std::string fault =
      "simt: rank 1 of 2, ncclAllGather (" + text_of(here) + "), when it runs: sendbuff, 4 bytes";
  CHECK_THAT(ranks.report(0),
             ContainsSubstring("RankLost 1: rank 1 (" + ranks.process_of(1) + ") has failed: " + fault) &&
                 ContainsSubstring("; another rank has ended or failed"));
  CHECK_THAT(ranks.report(1),
             ContainsSubstring("thrown: " + fault) && ContainsSubstring("; the simulated NCCL has failed"));
}

TEST_CASE("nccl: recorded calls that are replayed in different orders do not fit") {
  ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                      const Buffers b;
                      std::vector<Graph> graphs;
                      for (const std::size_t count : {10, 20}) {
                        runtime::begin_capture(own.stream);
                        require(gather(own, b, count));
                        graphs.push_back(runtime::end_capture(own.stream));
                      }
                      return thrown_by([&] {
                        runtime::replay(graphs[static_cast<std::size_t>(own.rank)], own.stream);
                        runtime::synchronize(own.stream);
                      });
                    }));
  std::string both = ranks.report(0) + ranks.report(1);
  CHECK_THAT(
      both,
      ContainsSubstring("rank 0 of 2 expects 40 bytes, rank 1 (" + ranks.process_of(1) + ") sends 80") ||
          ContainsSubstring("rank 1 of 2 expects 80 bytes, rank 0 (" + ranks.process_of(0) + ") sends 40"));
}

// ------------------------------------------------------------------------------------------------- other
// threads
TEST_CASE("nccl: another thread sees the state, and ends by an abort what waits for ever") {
  RestoredOptions options;
  set_failure(options, 0, 1, NcclFault::silence);
  for (const Streams streams : {Streams::at_once, Streams::late}) {
    options->streams = streams;
    ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                        const Buffers b;
                        std::string seen;
                        std::thread watchdog([&] {
                          std::this_thread::sleep_for(milliseconds(150));
                          if (own.rank == 1) return;
                          seen = async_error(own);
                          require(ncclCommAbort(own.comm, here));
                        });
                        const std::string text = thrown_by([&] {
                          require(gather(own, b));
                          runtime::synchronize(own.stream);
                        });
                        watchdog.join();
                        return text + "; " + seen;
                      }));
    const std::string abort = "ncclCommAbort (" + text_of(here) + ")";
    CHECK_THAT(ranks.report(0), ContainsSubstring("its communicator has ended by " + abort) &&
                                    ContainsSubstring("; no error"));
    CHECK_THAT(ranks.report(1), ContainsSubstring("RankLost 0: rank 0 (" + ranks.process_of(0) +
                                                  ") has aborted its communicator: " + abort));
  }
}

TEST_CASE("nccl: an abort ends a call that waits for another rank") {
  RestoredOptions options;
  for (const NcclBlock block : {NcclBlock::never, NcclBlock::always}) {
    options->nccl_block = block;
    ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                        const Buffers b;
                        if (own.rank == 1) {
                          std::this_thread::sleep_for(milliseconds(400));
                          return std::string();
                        }
                        std::thread watchdog([&] {
                          std::this_thread::sleep_for(milliseconds(50));
                          require(ncclCommAbort(own.comm, here));
                        });
                        const std::string text = thrown_by([&] { require(gather(own, b)); });
                        watchdog.join();
                        return text;
                      }));
    CHECK_THAT(ranks.report(0), ContainsSubstring("its communicator has ended by ncclCommAbort"));
  }
}

// ------------------------------------------------------------------------------------------------- planted
// failures
TEST_CASE("nccl: planted errors are returned, or told later, at their call") {
  RestoredOptions options;
  options->streams = Streams::late;
  set_failure(options, 1, 3, NcclFault::error);
  const auto three_calls = [](NcclRank& own) {
    const Buffers& b = *new Buffers;  // to release it would be to wait for the calls
    std::string text;
    for (int call = 0; call < 3; ++call)
      text += error_of(ncclAllGather(b.send, b.receive, 1, ncclFloat32, own.comm, own.stream, here)) + "; ";
    return text + async_error(own);
  };
  ForkedRanks errors(2, with_communicator(2, three_calls));
  CHECK(errors.report(0) == "no error; no error; no error; no error");
  CHECK(errors.report(1) == "no error; no error; the system has failed: simt: rank 1 of 2, ncclAllGather (" +
                                text_of(here) + "): the error that nccl_failure asks for; no error");

  set_failure(options, 1, 3, NcclFault::async);
  ForkedRanks later(2, with_communicator(2, three_calls));
  CHECK(later.report(0) == "no error; no error; no error; no error");
  CHECK(later.report(1) == "no error; no error; no error; another rank has ended or failed");
}

TEST_CASE("nccl: delays are random, and none is longer than was asked for") {
  RestoredOptions options;
  options->nccl_delay = 20;
  ForkedRanks ranks(1, with_communicator(1, [](NcclRank& own) {
                      const Buffers b;
                      std::vector<double> times;
                      for (int call = 0; call < 20; ++call) {
                        const auto began = Clock::now();
                        require(gather(own, b, 1));
                        times.push_back(std::chrono::duration<double>(Clock::now() - began).count());
                      }
                      std::sort(times.begin(), times.end());
                      return std::string(times.front() < 0.008 ? "" : "always long; ") +
                             (times.back() > 0.012 ? "" : "never long; ") +
                             (times[10] < 0.030 ? "" : "longer than asked for");
                    }));
  CHECK(ranks.report(0) == "");
}

TEST_CASE("nccl: a call that blocks until the others have come does so, and runs what is enqueued before") {
  for (const NcclBlock block : {NcclBlock::never, NcclBlock::always}) {
    RestoredOptions options;
    options->streams = Streams::late;
    options->nccl_block = block;
    ForkedRanks ranks(2, with_communicator(2, [&](NcclRank& own) {
                        const Buffers b;
                        double longest = 0;
                        for (int call = 0; call < 2; ++call) {
                          if (own.rank == 1)
                            runtime::synchronize(own.stream);  // needs the other's first call
                          if (own.rank == 1) std::this_thread::sleep_for(milliseconds(100));
                          const auto began = Clock::now();
                          require(gather(own, b, 1));
                          longest =
                              std::max(longest, std::chrono::duration<double>(Clock::now() - began).count());
                        }
                        runtime::synchronize(own.stream);
                        return std::string(longest > 0.05 ? "blocks" : "returns");
                      }));
    CHECK(ranks.report(0) == (block == NcclBlock::always ? "blocks" : "returns"));
    ranks.report(1);
  }
}

TEST_CASE("nccl: options from the environment") {
  const auto failure_of = [](const char* text) -> std::string {
    setenv("GOAT_SIMT_NCCL_FAIL", text, 1);
    try {
      const NcclFailure failure = environment_options().nccl_failure;
      unsetenv("GOAT_SIMT_NCCL_FAIL");
      return std::to_string(failure.rank) + " " + std::to_string(failure.call) + " " +
             std::to_string(static_cast<int>(failure.fault));
    } catch (const std::runtime_error& error) {
      unsetenv("GOAT_SIMT_NCCL_FAIL");
      return error.what();
    }
  };
  CHECK(failure_of("0:1:error") == "0 1 1");
  CHECK(failure_of("3:12:async") == "3 12 2");
  CHECK(failure_of("3:12:silence") == "3 12 3");
  CHECK(failure_of("1:7:death") == "1 7 4");
  for (const char* wrong : {"", "1", "1:", "1:2", "1:2:", "1:2:deat", "1:0:death", "-1:2:death", "a:2:death",
                            "1:2:death:", "1;2;death"})
    CHECK_THAT(failure_of(wrong), ContainsSubstring("GOAT_SIMT_NCCL_FAIL is '" + std::string(wrong) +
                                                    "': it must be rank:call:fault"));
  setenv("GOAT_SIMT_NCCL_DELAY", "7", 1);
  setenv("GOAT_SIMT_NCCL_BLOCK", "always", 1);
  CHECK(environment_options().nccl_delay == 7);
  CHECK((environment_options().nccl_block == NcclBlock::always));
  unsetenv("GOAT_SIMT_NCCL_DELAY");
  unsetenv("GOAT_SIMT_NCCL_BLOCK");
}
