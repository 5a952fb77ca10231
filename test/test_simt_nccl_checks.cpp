// What the simulated NCCL finds: each mistake that its checks are for is planted, and named with ranks and
// source lines.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/simt/nccl.h"
#include "test/nccl_ranks.h"
#include "test/simulated.h"

using namespace goat;
using namespace goat::on_simt;
using namespace goat::test;

namespace {
// Source lines that calls are said to stand in.
constexpr Where here = Where::current();
constexpr Where there = Where::current();

struct Buffers {
  DeviceArray<float> send{std::vector<float>(64, 1.0f)}, receive{64};
};
using Call = std::function<ncclResult_t(NcclRank&, const Buffers&, Where)>;

ncclResult_t gather(NcclRank& own, const Buffers& buffers, Where where, ncclComm_t comm = nullptr) {
  return ncclAllGather(buffers.send, buffers.receive, 4, ncclFloat32, comm ? comm : own.comm, own.stream,
                       where);
}
ncclResult_t broadcast(NcclRank& own, const Buffers& buffers, Where where, ncclComm_t comm = nullptr) {
  return ncclBroadcast(buffers.send, buffers.receive, 4, ncclFloat32, 0, comm ? comm : own.comm, own.stream,
                       where);
}
ncclResult_t send(NcclRank& own, const Buffers& buffers, Where where, std::size_t count = 4) {
  return ncclSend(buffers.send, count, ncclFloat32, 1 - own.rank, own.comm, own.stream, where);
}
ncclResult_t receive(NcclRank& own, const Buffers& buffers, Where where, std::size_t count = 4) {
  return ncclRecv(buffers.receive, count, ncclFloat32, 1 - own.rank, own.comm, own.stream, where);
}
ncclResult_t grouped(const std::vector<std::function<ncclResult_t()>>& calls) {
  require(ncclGroupStart());
  for (const auto& call : calls) require(call());
  return ncclGroupEnd(here);
}

// What a rank is told: by its calls, and by who waits for its stream.
std::string told(NcclRank& own, const std::vector<std::function<ncclResult_t()>>& calls) {
  try {
    for (const auto& call : calls)
      if (const ncclResult_t result = call(); result != ncclSuccess) return error_of(result);
    runtime::synchronize(own.stream);
  } catch (const RankLost& error) {
    return std::string("RankLost ") + error.what();
  }
  return "nothing";
}

// Two ranks that do one thing each. Both are told of the difference, whoever comes first.
using Body = std::function<std::vector<std::function<ncclResult_t()>>(NcclRank&, const Buffers&)>;
void check_difference(const Body& first, const Body& second, const std::vector<std::string>& parts) {
  for (const auto& [streams, late] : {std::pair{Streams::at_once, 0}, std::pair{Streams::at_once, 1},
                                      std::pair{Streams::late, 0}, std::pair{Streams::late, 1}}) {
    RestoredOptions options;
    options->streams = streams;
    ForkedRanks ranks(2, with_communicator(2, [&, &late_rank = late](NcclRank& own) {
                        const Buffers buffers;
                        const auto calls = (own.rank == 0 ? first : second)(own, buffers);
                        if (own.rank == late_rank) std::this_thread::sleep_for(std::chrono::milliseconds(60));
                        const std::string text = told(own, calls);
                        if (text != "nothing" && told(own, calls) == "nothing")
                          return std::string("forgotten");
                        return text;
                      }));
    for (int r = 0; r < 2; ++r) {
      const std::string report = ranks.report(r);
      INFO("rank " << r << ", late is " << late << ", streams " << static_cast<int>(streams));
      CHECK_THAT(report, ContainsSubstring("the calls of the ranks differ") &&
                             ContainsSubstring("rank 0 (" + ranks.process_of(0)) &&
                             ContainsSubstring("rank 1 (" + ranks.process_of(1)) &&
                             ContainsSubstring(text_of(here)) && ContainsSubstring(text_of(there)));
      for (const std::string& part : parts) CHECK_THAT(report, ContainsSubstring(part));
    }
  }
}

// One call of rank 0, and one of rank 1.
void check_difference(const Call& first, const Call& second, const std::vector<std::string>& parts) {
  const auto body = [](const Call& call, Where where) {
    return [=](NcclRank& own, const Buffers& buffers) {
      return std::vector<std::function<ncclResult_t()>>{
          [=, &own, &buffers] { return call(own, buffers, where); }};
    };
  };
  check_difference(Body(body(first, here)), Body(body(second, there)), parts);
}
}  // namespace

TEST_CASE("nccl: calls whose count, type, root, operation or kind differ between ranks") {
  const auto gathers = [](std::size_t count, ncclDataType_t type) {
    return [=](NcclRank& own, const Buffers& buffers, Where where) {
      return ncclAllGather(buffers.send, buffers.receive, count, type, own.comm, own.stream, where);
    };
  };
  const auto sums = [](ncclRedOp_t operation) {
    return [=](NcclRank& own, const Buffers& buffers, Where where) {
      return ncclReduceScatter(buffers.send, buffers.receive, 4, ncclFloat32, operation, own.comm, own.stream,
                               where);
    };
  };
  const auto broadcasts = [](int root) {
    return [=](NcclRank& own, const Buffers& buffers, Where where) {
      return ncclBroadcast(buffers.send, buffers.receive, 4, ncclFloat32, root, own.comm, own.stream, where);
    };
  };
  check_difference(Call(gathers(4, ncclFloat32)), Call(gathers(5, ncclFloat32)),
                   {"has count 4", "has count 5"});
  check_difference(Call(gathers(4, ncclFloat32)), Call(gathers(4, ncclInt32)),
                   {"has data type 7", "has data type 2"});
  check_difference(Call(broadcasts(0)), Call(broadcasts(1)), {"has root 0", "has root 1"});
  check_difference(Call(gathers(4, ncclFloat32)), Call(broadcasts(0)),
                   {"collective 1 is", "ncclAllGather (", "ncclBroadcast ("});
  check_difference(Call([](auto& own, auto& b, Where where) { return send(own, b, where, 4); }),
                   Call([](auto& own, auto& b, Where where) { return receive(own, b, where, 6); }),
                   {"ncclSend (", "ncclRecv (", "has count 4", "has count 6"});
  check_difference(Call(sums(ncclSum)), Call([&](auto& own, auto& b, Where where) {
                     if (own.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
                     return sums(ncclMax)(own, b, where);
                   }),
                   {"has operation 0", "has operation 2"});
}

TEST_CASE("nccl: unequal order on one communicator, of groups, and between messages and collectives") {
  const auto one = [](auto call, Where where) {
    return [=](NcclRank& own, const Buffers& b) -> ncclResult_t { return call(own, b, where); };
  };
  const auto in_order = [](auto... calls) {
    return Body([=](NcclRank& own, const Buffers& b) {
      return std::vector<std::function<ncclResult_t()>>{[=, &own, &b] { return calls(own, b); }...};
    });
  };
  const auto gather_at = [](NcclRank& own, const Buffers& b, Where where) { return gather(own, b, where); };
  const auto send_at = [](NcclRank& own, const Buffers& b, Where where) { return send(own, b, where); };
  const auto receive_at = [](NcclRank& own, const Buffers& b, Where where) { return receive(own, b, where); };
  check_difference(in_order(one(send_at, here), one(gather_at, here)),
                   in_order(one(gather_at, there), one(receive_at, there)), {"unequal order: rank"});
  check_difference(in_order(one(send_at, here), one(receive_at, here)),
                   in_order(one(send_at, there), one(receive_at, there)), {"unequal order: rank"});
  const auto fused = [](NcclRank& own, const Buffers& b) {
    return grouped(
        {[&] { return gather(own, b, here); },
         [&] { return ncclAllGather(b.send, b.receive + 32, 4, ncclFloat32, own.comm, own.stream, here); }});
  };
  check_difference(in_order(fused), in_order(one(gather_at, there), one(gather_at, there)),
                   {"grouped collectives: 2", "grouped collectives: 1"});
}

TEST_CASE("nccl: unequal order across the communicators of a device") {
  for (const bool crossed : {true, false}) {
    const auto body = [&](NcclRank& own) {
      const Buffers buffers;
      ncclComm_t part = nullptr;
      require(ncclCommSplit(own.comm, 0, own.rank, &part, nullptr, here));
      const std::function<ncclResult_t()> on_all = [&] { return gather(own, buffers, here); },
                                          on_part = [&] { return broadcast(own, buffers, there, part); };
      return own.rank == 0 || !crossed ? told(own, {on_all, on_part}) : told(own, {on_part, on_all});
    };
    for (const Streams streams : {Streams::at_once, Streams::late}) {
      RestoredOptions options;
      options->streams = streams;
      ForkedRanks ranks(2, with_communicator(2, body));
      for (int r = 0; r < 2; ++r) {
        const std::string report = ranks.report(r);
        INFO(report);
        if (!crossed)
          CHECK(report == "nothing");
        else
          CHECK_THAT(report, ContainsSubstring("unequal order: rank ") &&
                                 ContainsSubstring("ncclAllGather (" + text_of(here)) &&
                                 ContainsSubstring("ncclBroadcast (" + text_of(there)));
      }
    }
  }
}

TEST_CASE("nccl: orders that NCCL allows are not refused") {
  ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                      const Buffers b;
                      const std::function<ncclResult_t()> sends = [&] { return send(own, b, here); },
                                                          receives = [&] { return receive(own, b, here); };
                      if (own.rank == 0)  // against two calls that are not grouped
                        return told(own, {[&] {
                                            return grouped({sends, receives});
                                          },
                                          [&] {
                                            return grouped({receives, sends});
                                          }});
                      return told(own, {sends, receives, [&] { return grouped({receives, sends}); }});
                    }));
  for (int r = 0; r < 2; ++r) CHECK(ranks.report(r) == "nothing");
}

TEST_CASE("nccl: messages and collectives of one group stand in any order") {
  ForkedRanks ranks(
      2, with_communicator(2, [](NcclRank& own) {
        const Buffers b;
        const std::function<ncclResult_t()> gathers = [&] { return gather(own, b, here); };
        if (own.rank == 0)
          return told(own, {[&] { return grouped({gathers, [&] { return send(own, b, here, 9); }}); }});
        return told(
            own, {[&] {
              return grouped(
                  {[&] { return ncclRecv(b.receive + 32, 9, ncclFloat32, 0, own.comm, own.stream, here); },
                   gathers});
            }});
      }));
  for (int r = 0; r < 2; ++r) CHECK(ranks.report(r) == "nothing");
}

TEST_CASE("nccl: a split that another rank does not make") {
  ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                      const Buffers b;
                      ncclComm_t part = nullptr;
                      return told(own, {[&] {
                                    if (own.rank == 1) return gather(own, b, there);
                                    return ncclCommSplit(own.comm, 0, 0, &part, nullptr, here);
                                  }});
                    }));
  for (int r = 0; r < 2; ++r)
    CHECK_THAT(ranks.report(r), ContainsSubstring("ncclCommSplit (" + text_of(here)) &&
                                    ContainsSubstring("ncclAllGather (" + text_of(there)));
}

// ------------------------------------------------------------------------------------------------- arguments
namespace {
// What one rank of two, which the other awaits, is told of its call.
std::string alone(const std::function<std::string(NcclRank&, const Buffers&)>& body) {
  ForkedRanks ranks(2, with_communicator(2, [&](NcclRank& own) {
                      const Buffers buffers;
                      return own.rank == 1 ? body(own, buffers) : std::string();
                    }));
  ranks.report(0);
  return ranks.report(1);
}
// Rank 1 of 2, at the line `here`, is told `text`.
void check_refused(const Call& call, const std::string& text) {
  const std::string report =
      alone([&](NcclRank& own, const Buffers& b) { return error_of(call(own, b, here)); });
  CHECK_THAT(report, ContainsSubstring("invalid argument: simt: rank 1 of 2, nccl") &&
                         ContainsSubstring(" (" + text_of(here) + "): ") && ContainsSubstring(text));
}
}  // namespace

TEST_CASE("nccl: memory that overlaps, but for NCCL's forms in place") {
  const std::string overlaps = "sendbuff overlaps recvbuff";
  const auto gather_from = [](int offset) {
    return [=](NcclRank& own, const Buffers& b, Where where) {
      return ncclAllGather(b.receive + offset, b.receive, 8, ncclFloat32, own.comm, own.stream, where);
    };
  };
  const auto sum_to = [](int offset) {
    return [=](NcclRank& own, const Buffers& b, Where where) {
      return ncclReduceScatter(b.send, b.send + offset, 8, ncclFloat32, ncclSum, own.comm, own.stream, where);
    };
  };
  for (const int offset : {0, 7, 9, 15}) {
    check_refused(gather_from(offset), overlaps);
    check_refused(sum_to(offset), overlaps);
  }
  for (const int offset : {0, 15})
    check_refused(
        [=](NcclRank& own, const Buffers& b, Where where) {
          return ncclAlltoAll(b.send, b.send + offset, 8, ncclFloat32, own.comm, own.stream, where);
        },
        overlaps);
  check_refused(
      [](NcclRank& own, const Buffers& b, Where where) {
        return ncclBroadcast(b.send, b.send + 1, 8, ncclFloat32, 1, own.comm, own.stream, where);
      },
      overlaps);
}

TEST_CASE("nccl: memory that is not the device's, or too short") {
  static float of_host[16];
  const auto receives_at = [](auto place, std::size_t count) {
    return [=](NcclRank& own, const Buffers& b, Where where) {
      return ncclRecv(place(b), count, ncclFloat32, 0, own.comm, own.stream, where);
    };
  };
  check_refused(receives_at([](const Buffers&) { return of_host; }, 16), "recvbuff, 64 bytes at ");
  check_refused(receives_at([](const Buffers&) { return of_host; }, 16), "is not device memory");
  check_refused(receives_at([](const Buffers&) { return nullptr; }, 1), "is not device memory");
  check_refused(receives_at([](const Buffers&) { return runtime::allocate_host(64); }, 16),
                "is page-locked memory of the host");
  check_refused(receives_at([](const Buffers& b) { return b.receive + 1; }, 64), "is out of bounds");
  check_refused([](NcclRank& own, const Buffers&,
                   Where where) { return ncclSend(of_host, 1, ncclFloat32, 0, own.comm, own.stream, where); },
                "sendbuff, 4 bytes at ");
}

TEST_CASE("nccl: a rank, type, count, operation, stream or communicator that does not exist") {
  const auto sends = [](std::size_t count, ncclDataType_t type, int peer) {
    return [=](NcclRank& own, const Buffers& b, Where where) {
      return ncclSend(b.send, count, type, peer, own.comm, own.stream, where);
    };
  };
  check_refused(sends(1, ncclFloat32, 2), "rank 2 is not one of the 2 ranks");
  check_refused(sends(1, ncclFloat32, -1), "rank -1 is not one of the 2 ranks");
  check_refused(sends(1, ncclNumTypes, 0), "data type 12 does not exist");
  check_refused(sends(SIZE_MAX / 4, ncclFloat32, 0), "elements are too many");
  check_refused(
      [](NcclRank& own, const Buffers& b, Where where) {
        return ncclBroadcast(b.send, b.receive, 1, ncclFloat32, 5, own.comm, own.stream, where);
      },
      "rank 5 is not one of the 2 ranks");
  check_refused(
      [](NcclRank& own, const Buffers& b, Where where) {
        return ncclReduceScatter(b.send, b.receive, 1, ncclFloat32, ncclAvg, own.comm, own.stream, where);
      },
      "operation 4 is not simulated");
  check_refused(
      [](NcclRank& own, const Buffers& b, Where where) {
        return ncclReduceScatter(b.send, b.receive, 1, ncclFloat16, ncclSum, own.comm, own.stream, where);
      },
      "the sum of data type 6 is not simulated");
  check_refused(
      [](NcclRank& own, const Buffers& b, Where where) {
        const Stream gone = runtime::create_stream();
        runtime::destroy_stream(gone);
        return ncclSend(b.send, 1, ncclFloat32, 0, own.comm, gone, where);
      },
      "no such stream");
  int count = 0;
  const auto unknown = reinterpret_cast<ncclComm_t>(&count);
  for (const ncclComm_t comm : {ncclComm_t{}, unknown})
    CHECK_THAT(error_of(ncclCommCount(comm, &count, here)),
               ContainsSubstring("ncclCommCount (" + text_of(here) + "): the communicator is null, or no"));
}

// ------------------------------------------------------------------------------------------------- groups
TEST_CASE("nccl: a group that is not closed, or was never opened") {
  const std::string report = alone([](NcclRank& own, const Buffers& b) {
    require(ncclGroupStart(there));
    require(send(own, b, here));
    return error_of(ncclCommDestroy(own.comm, here));
  });
  CHECK_THAT(report, ContainsSubstring("invalid usage") &&
                         ContainsSubstring("ncclCommDestroy (" + text_of(here)) &&
                         ContainsSubstring("ncclGroupStart (" + text_of(there)) &&
                         ContainsSubstring("is not closed"));
  CHECK_THAT(error_of(ncclGroupEnd(here)),
             ContainsSubstring("ncclGroupEnd (" + text_of(here) + "): no group of this thread is open"));
}

TEST_CASE("nccl: a stream that is used inside a group") {
  using Use = std::function<void(NcclRank&, const Buffers&)>;
  const std::vector<Use> uses = {
      [](NcclRank& own, const Buffers& b) { runtime::set_zero(b.send, 4, own.stream); },
      [](NcclRank& own, const Buffers&) { runtime::record(runtime::create_event(), own.stream); },
      [](NcclRank&, const Buffers&) {}};
  RestoredOptions options;
  for (const Streams streams : {Streams::at_once, Streams::late}) {
    options->streams = streams;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      ForkedRanks ranks(2, with_communicator(2, [&](NcclRank& own) {
                          const Buffers b;
                          require(ncclGroupStart());
                          require(own.rank == 0 ? receive(own, b, here) : send(own, b, here));
                          uses[i](own, b);
                          const std::string text = error_of(ncclGroupEnd(there));
                          if (text == "no error") runtime::synchronize(own.stream);
                          return text;
                        }));
      for (int r = 0; r < 2; ++r) {
        const std::string report = ranks.report(r);
        if (i == 2)
          CHECK(report == "no error");
        else
          CHECK_THAT(report, ContainsSubstring("rank " + std::to_string(r) + " of 2, nccl") &&
                                 ContainsSubstring(text_of(here) +
                                                   "): its stream was used for something else "
                                                   "before ncclGroupEnd (" +
                                                   text_of(there)));
      }
    }
  }
}

TEST_CASE("nccl: memory of the calls of a group that overlaps, and a message to oneself without a receiver") {
  const std::string overlap = alone([](NcclRank& own, const Buffers& b) {
    require(ncclGroupStart());
    require(ncclRecv(b.receive, 8, ncclFloat32, 0, own.comm, own.stream, here));
    require(ncclRecv(b.receive + 7, 8, ncclFloat32, 0, own.comm, own.stream, there));
    return error_of(ncclGroupEnd());
  });
  CHECK_THAT(overlap, ContainsSubstring(text_of(there) + "): recvbuff overlaps recvbuff of ncclRecv (" +
                                        text_of(here) + ") in the same group"));
  const std::string self = alone([](NcclRank& own, const Buffers& b) {
    return error_of(ncclSend(b.send, 1, ncclFloat32, 1, own.comm, own.stream, here));
  });
  CHECK_THAT(self, ContainsSubstring(text_of(here) + "): what a rank sends to itself"));
  const std::string refused = alone([](NcclRank& own, const Buffers& b) {
    require(ncclGroupStart());
    ncclSend(b.send, 1, ncclFloat32, 7, own.comm, own.stream, here);
    require(send(own, b, there));
    return error_of(ncclGroupEnd());
  });
  CHECK_THAT(refused, ContainsSubstring("rank 7 is not one of"));  // as its call was
}

// ------------------------------------------------------------------------------------------------- lifetimes
TEST_CASE("nccl: use after finalize, destroy and abort") {
  using End = ncclResult_t (*)(ncclComm_t, Where);
  const std::pair<End, std::string> ends[] = {{ncclCommFinalize, "ncclCommFinalize"},
                                              {ncclCommDestroy, "ncclCommDestroy"},
                                              {ncclCommAbort, "ncclCommAbort"}};
  for (const auto& [end, name] : ends) {
    ForkedRanks ranks(1, with_communicator(1, [&, &ended_by = end](NcclRank& own) {
                        const Buffers b;
                        require(gather(own, b, here));
                        require(ended_by(own.comm, there));
                        const std::string used = error_of(gather(own, b, here));
                        return used + "; " + error_of(ncclCommDestroy(own.comm, here));
                      }));
    const std::string report = ranks.report(0),
                      ended = "its communicator has ended by " + name + " (" + text_of(there);
    CHECK_THAT(report, ContainsSubstring("ncclAllGather (" + text_of(here) + "): " + ended));
    if (name == "ncclCommFinalize")
      CHECK_THAT(report, ContainsSubstring("; no error"));
    else
      CHECK_THAT(report, ContainsSubstring("ncclCommDestroy (" + text_of(here) + "): " + ended));
  }
}

TEST_CASE("nccl: a communicator that is never destroyed, and a group that is never closed, at the exit") {
  for (const bool forgotten : {true, false}) {
    const ncclUniqueId id = fresh_id();
    const std::string report = report_of_child([&] {
      options().leaks = true;
      ncclComm_t comm = nullptr;
      require(ncclCommInitRankConfig(&comm, 1, id, 0, nullptr, here));
      if (!forgotten) require(ncclCommDestroy(comm));
      require(ncclGroupStart(there));
      if (!forgotten) require(ncclGroupEnd());
      std::exit(0);
    });
    if (forgotten)
      CHECK_THAT(report, ContainsSubstring("the communicator of ncclCommInitRankConfig (" + text_of(here) +
                                           "), rank 0 of 1, was never destroyed") &&
                             ContainsSubstring("the group that ncclGroupStart (" + text_of(there) +
                                               ") has opened was never closed"));
    else
      CHECK_THAT(report, !ContainsSubstring("never"));
  }
}

TEST_CASE("nccl: ids and ranks of a new communicator") {
  ncclComm_t comm = nullptr;
  ncclUniqueId id = fresh_id(), foreign{};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER, raw{};
  const auto made = [&](int size, const ncclUniqueId& with, int rank, ncclConfig_t* options) {
    return error_of(ncclCommInitRankConfig(&comm, size, with, rank, options, here));
  };
  const std::string call = "ncclCommInitRankConfig (" + text_of(here) + "): ";
  CHECK_THAT(made(2, id, 2, &config), ContainsSubstring(call + "rank 2 of 2 ranks"));
  CHECK_THAT(made(2, id, -1, &config), ContainsSubstring(call + "rank -1 of 2 ranks"));
  CHECK_THAT(made(0, id, 0, &config), ContainsSubstring(call + "rank 0 of 0 ranks"));
  CHECK_THAT(made(1, foreign, 0, &config), ContainsSubstring(call + "the id is not one of ncclGetUniqueId"));
  CHECK_THAT(made(1, id, 0, &raw), ContainsSubstring("does not begin as NCCL_CONFIG_INITIALIZER"));
  CHECK(made(1, id, 0, &config) == "no error");
  require(ncclCommDestroy(comm));
  CHECK_THAT(made(1, id, 0, &config),
             ContainsSubstring("rank 0 of 1, " + call + "this process has used the id"));
}

TEST_CASE("nccl: ranks that were told different numbers of ranks, and one that is there twice") {
  for (const bool twice : {false, true}) {
    const ncclUniqueId id = fresh_id();
    ForkedRanks ranks;
    const auto attach = [&](int size) {
      return [=](int rank) {
        ncclComm_t comm = nullptr;
        return error_of(ncclCommInitRankConfig(&comm, size, id, rank, nullptr, here));
      };
    };
    ranks.start(0, attach(3));
    ranks.start(1, attach(twice ? 3 : 2));
    if (twice) ranks.start(1, attach(3));
    const int refused = ranks.first_to_end();
    CHECK_THAT(
        ranks.report(refused),
        ContainsSubstring("ncclCommInitRankConfig (" + text_of(here) + "): shared memory /dev/shm/goat-") &&
            ContainsSubstring(twice ? "two processes are rank 1" : "was told of 2 ranks, rank 0 of 3"));
    if (twice) ranks.start(2, attach(3));  // so that no segment stays behind
    if (twice) CHECK(ranks.report(0) == "no error");
    if (!twice) {
      ranks.start(1, attach(3));
      ranks.start(2, attach(3));
      CHECK(ranks.report(0) == "no error");
    }
  }
}

TEST_CASE("nccl: two threads at once in one communicator") {
  ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                      const Buffers b;
                      std::string text;
                      if (own.rank == 1) {
                        std::this_thread::sleep_for(std::chrono::milliseconds(200));
                        require(gather(own, b, here));
                        return text;
                      }
                      std::thread first([&] { require(gather(own, b, here)); });  // until rank 1 comes
                      std::this_thread::sleep_for(std::chrono::milliseconds(60));
                      text = error_of(gather(own, b, there));
                      first.join();
                      require(ncclGroupStart());
                      require(send(own, b, here));
                      std::thread([&] { text += "; " + error_of(gather(own, b, there)); }).join();
                      return text;
                    }));
  const std::string report = ranks.report(0),
                    said = "rank 0 of 2, ncclAllGather (" + text_of(there) + "): another thread";
  CHECK_THAT(report, ContainsSubstring(said));
  CHECK_THAT(report.substr(report.find("; ")), ContainsSubstring(said));
  CHECK(ranks.report(1) == "");
}

TEST_CASE("nccl: ncclInProgress must be polled where calls do not block") {
  const auto id = fresh_id();
  ForkedRanks ranks(2, [&](int rank) {
    const Buffers b;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const Stream stream = runtime::create_stream();
    const auto poll = [&] {
      ncclResult_t state = ncclInProgress;
      int polls = 0;
      for (; state == ncclInProgress; ++polls) require(ncclCommGetAsyncError(comm, &state));
      require(state);
      return polls;
    };
    const auto gather_all = [&] {
      return ncclAllGather(b.send, b.receive, 4, ncclFloat32, comm, stream, here);
    };
    std::string text;
    if (ncclCommInitRankConfig(&comm, 2, id, rank, &config) != ncclInProgress) text += "init; ";
    if (gather_all() != ncclInvalidUsage) text += "not polled after init; ";
    text += ncclGetLastError(comm);
    if (poll() < 2) text += "no poll needed; ";
    if (gather_all() != ncclInProgress) text += "call; ";
    if (ncclCommDestroy(comm, there) != ncclInvalidUsage) text += "not polled after a call; ";
    poll();
    require(ncclGroupStart());
    require(gather_all());
    if (ncclGroupEnd() != ncclInProgress) text += "group; ";
    poll();
    if (ncclCommFinalize(comm) != ncclInProgress) text += "finalize; ";
    poll();
    require(ncclCommDestroy(comm));
    return text;
  });
  for (int r = 0; r < 2; ++r)
    CHECK(ranks.report(r) == "simt: rank " + std::to_string(r) + " of 2, ncclAllGather (" + text_of(here) +
                                 "): an earlier call on the communicator, which is not blocking, returned "
                                 "ncclInProgress: ask ncclCommGetAsyncError until it tells of another state");
}
