// The simulated NCCL: random programs of its calls against the bytes and sums that NCCL's manual promises.
#include "kernels/simt/nccl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/bf16_bits.h"
#include "test/nccl_ranks.h"
#include "test/operand.h"
#include "test/simulated.h"

using namespace goat;
using namespace goat::on_simt;
using namespace goat::test;

namespace {
using Bytes = std::vector<std::byte>;

struct Type {
  ncclDataType_t type;
  std::size_t bytes;
};
constexpr Type moved[] = {{ncclUint8, 1},   {ncclFloat16, 2}, {ncclBfloat16, 2},
                          {ncclFloat32, 4}, {ncclInt64, 8},   {ncclFloat64, 8}};
constexpr Type summed[] = {
    {ncclBfloat16, 2}, {ncclFloat32, 4}, {ncclFloat64, 8}, {ncclInt32, 4}, {ncclInt64, 8}};

// What rank `from` sends rank `to` in a call; never the poison.
Bytes bytes_of(int call, int from, int to, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(
        (static_cast<std::size_t>(call * 131 + from * 31 + to * 7) + i * 13 + i / 251) % 255);
  return bytes;
}

// Whole numbers that every type of a sum holds exactly, also when they are added.
int number_of(int call, int from, int to, std::size_t i) {
  return (call * 5 + from * 3 + to * 2 + static_cast<int>(i % 11)) % 9 - 4;
}
void append_number(Bytes& bytes, ncclDataType_t type, int number) {
  const auto append = [&](auto value) {
    const auto* first = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), first, first + sizeof value);
  };
  switch (type) {
    case ncclBfloat16: return append(bf16_bits(static_cast<float>(number)));
    case ncclFloat32: return append(static_cast<float>(number));
    case ncclFloat64: return append(static_cast<double>(number));
    case ncclInt32: return append(static_cast<std::int32_t>(number));
    default: return append(static_cast<std::int64_t>(number));
  }
}

// A program of random calls, the same on all ranks but for pauses and the order inside groups. Sources are
// overwritten by work that is enqueued behind their call. What arrives is looked at in the end.
class RandomProgram {
 public:
  RandomProgram(NcclRank& rank, std::uint64_t seed)
      : own_(rank), rng_(seed), private_(seed + static_cast<std::uint64_t>(rank.rank) + 1) {}

  std::string run(int calls) {
    for (call_ = 0; call_ < calls; ++call_) {
      if (private_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(private_() % 2000));
      const bool grouped = rng_() % 4 == 0;
      if (grouped) require(ncclGroupStart());
      for (std::uint64_t more = grouped ? rng_() % 4 : 1; more > 0; --more) make_one();
      if (grouped) require(ncclGroupEnd());
      for (const auto& [source, bytes] : std::exchange(sources_, {}))
        runtime::set_zero(source, bytes, own_.stream);
    }
    return faults();
  }

 private:
  struct Expected {
    const std::byte* place;
    Bytes want;
    std::string what;
  };

  std::byte* allocate(std::size_t bytes) {
    return *memory_.emplace_back(std::make_unique<DeviceArray<std::byte>>(std::max<std::size_t>(bytes, 1)));
  }
  std::byte* source(const Bytes& bytes, bool overwrite = true) {
    std::byte* place = allocate(bytes.size());
    fill(place, bytes);
    if (overwrite) sources_.emplace_back(place, bytes.size());
    return place;
  }
  // Without the stream, which must not be used inside a group.
  void fill(std::byte* place, const Bytes& bytes) { std::copy(bytes.begin(), bytes.end(), place); }
  void expect(const std::byte* place, const Bytes& want, const char* what) {
    expected_.push_back({place, want, "call " + std::to_string(call_) + ", " + what});
  }
  std::size_t choose_count() {
    const std::size_t counts[] = {0, 1, 2 * (rng_() % 40) + 1, 1000, rng_() % 5000, 70'000};
    return counts[rng_() % (rng_() % 8 == 0 ? 6 : 5)];
  }

  void make_one() {
    count_ = choose_count();
    type_ = moved[rng_() % std::size(moved)];
    bytes_ = count_ * type_.bytes;
    switch (rng_() % 8) {
      case 0: return messages();
      case 1: return all_to_all();
      case 2: return all_gather(false);
      case 3: return all_gather(true);
      case 4: return broadcast(false);
      case 5: return broadcast(true);
      case 6: return reduce_scatter(false);
      default: return reduce_scatter(true);
    }
  }

  void all_to_all() {
    Bytes sent, want;
    for (int r = 0; r < own_.size; ++r) {
      append(sent, bytes_of(call_, own_.rank, r, bytes_));
      append(want, bytes_of(call_, r, own_.rank, bytes_));
    }
    std::byte* receive = allocate(want.size());
    require(ncclAlltoAll(source(sent), receive, count_, type_.type, own_.comm, own_.stream));
    expect(receive, want, "ncclAlltoAll");
  }

  void all_gather(bool in_place) {
    const Bytes sent = bytes_of(call_, own_.rank, 0, bytes_);
    Bytes want;
    for (int r = 0; r < own_.size; ++r) append(want, bytes_of(call_, r, 0, bytes_));
    std::byte* receive = allocate(want.size());
    std::byte* part = receive + static_cast<std::size_t>(own_.rank) * bytes_;
    if (in_place) fill(part, sent);
    require(
        ncclAllGather(in_place ? part : source(sent), receive, count_, type_.type, own_.comm, own_.stream));
    expect(receive, want, in_place ? "ncclAllGather in place" : "ncclAllGather");
  }

  void broadcast(bool in_place) {
    const int root = static_cast<int>(rng_() % static_cast<std::uint64_t>(own_.size));
    const Bytes sent = bytes_of(call_, own_.rank, 0, bytes_);
    std::byte* receive = allocate(bytes_);
    if (in_place) fill(receive, sent);
    require(ncclBroadcast(in_place ? receive : source(sent), receive, count_, type_.type, root, own_.comm,
                          own_.stream));
    expect(receive, bytes_of(call_, root, 0, bytes_), "ncclBroadcast");
  }

  void reduce_scatter(bool in_place) {
    const Type type = summed[rng_() % std::size(summed)];
    Bytes sent, want;
    for (int to = 0; to < own_.size; ++to)
      for (std::size_t i = 0; i < count_; ++i)
        append_number(sent, type.type, number_of(call_, own_.rank, to, i));
    for (std::size_t i = 0; i < count_; ++i) {
      int sum = 0;
      for (int from = 0; from < own_.size; ++from) sum += number_of(call_, from, own_.rank, i);
      append_number(want, type.type, sum);
    }
    std::byte* send = source(sent, !in_place);
    std::byte* receive =
        in_place ? send + static_cast<std::size_t>(own_.rank) * want.size() : allocate(want.size());
    require(ncclReduceScatter(send, receive, count_, type.type, ncclSum, own_.comm, own_.stream));
    expect(receive, want, in_place ? "ncclReduceScatter in place" : "ncclReduceScatter");
  }

  // Up to two messages from each rank to each, also to itself; each rank makes its calls in an order of its
  // own, but for those of one pair.
  void messages() {
    std::vector<std::function<void()>> lanes;
    for (int from = 0; from < own_.size; ++from)
      for (int to = 0; to < own_.size; ++to) {
        const std::uint64_t number = rng_() % 3;
        if (from == own_.rank) lanes.push_back([=, this] { send(to, number); });
        if (to == own_.rank) lanes.push_back([=, this] { receive(from, number); });
      }
    std::shuffle(lanes.begin(), lanes.end(), private_);
    require(ncclGroupStart());
    for (const auto& lane : lanes) lane();
    require(ncclGroupEnd());
  }
  void send(int to, std::uint64_t number) {
    for (std::uint64_t n = 0; n < number; ++n)
      require(ncclSend(source(bytes_of(call_ + static_cast<int>(n), own_.rank, to, bytes_)), count_,
                       type_.type, to, own_.comm, own_.stream));
  }
  void receive(int from, std::uint64_t number) {
    for (std::uint64_t n = 0; n < number; ++n) {
      std::byte* place = allocate(bytes_);
      require(ncclRecv(place, count_, type_.type, from, own_.comm, own_.stream));
      expect(place, bytes_of(call_ + static_cast<int>(n), from, own_.rank, bytes_), "ncclRecv");
    }
  }

  static void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

  std::string faults() {
    std::string text;
    for (const Expected& one : expected_) {
      Bytes got(one.want.size());
      runtime::download(got.data(), one.place, got.size(), own_.stream);
      if (got != one.want && text.size() < 500) text += one.what + " is wrong; ";
    }
    return text;
  }

  NcclRank& own_;
  Rng rng_, private_;
  int call_ = 0;
  std::size_t count_ = 0, bytes_ = 0;
  Type type_{};
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> memory_;
  std::vector<std::pair<std::byte*, std::size_t>> sources_;
  std::vector<Expected> expected_;
};

struct Schedule {
  Streams streams;
  NcclBlock block;
  int delay;
};
constexpr Schedule schedules[] = {{Streams::at_once, NcclBlock::never, 0},
                                  {Streams::late, NcclBlock::never, 0},
                                  {Streams::late, NcclBlock::random, 0},
                                  {Streams::random, NcclBlock::random, 2},
                                  {Streams::at_once, NcclBlock::always, 1}};
}  // namespace

TEST_CASE("nccl: random calls of every kind bring what NCCL's manual promises, whenever work runs") {
  const std::uint64_t seed = fresh_seed();
  for (const Schedule& schedule : schedules)
    for (const int size : {1, 2, 3, 4}) {
      INFO("streams " << static_cast<int>(schedule.streams) << ", block " << static_cast<int>(schedule.block)
                      << ", " << size << " ranks, GOAT_TEST_SEED=" << seed);
      RestoredOptions options;
      options->streams = schedule.streams;
      options->nccl_block = schedule.block;
      options->nccl_delay = schedule.delay;
      options->seed = seed;
      ForkedRanks ranks(size, with_communicator(size, [&](NcclRank& rank) {
                          const std::string faults = RandomProgram(rank, seed).run(reduced() ? 20 : 60);
                          rank.finish();
                          return faults;
                        }));
      for (int r = 0; r < size; ++r) CHECK(ranks.report(r) == "");
    }
}

TEST_CASE("nccl: a chain of single sends and receives, of ranks of which one knows nothing") {
  ForkedRanks ranks(4, with_communicator(4, [](NcclRank& own) {
                      const DeviceArray<float> value(std::vector<float>{5, 6, 7});
                      if (own.rank > 0 && own.rank < 3)
                        require(ncclRecv(value, 3, ncclFloat32, own.rank - 1, own.comm, own.stream));
                      if (own.rank < 2)
                        require(ncclSend(value, 3, ncclFloat32, own.rank + 1, own.comm, own.stream));
                      runtime::synchronize(own.stream);
                      return std::to_string(value[0] + value[2]);
                    }));
  for (int r = 0; r < 4; ++r) CHECK(ranks.report(r) == "12.000000");
}

// Two ranks of each color, and one of none.
TEST_CASE("nccl: a split makes communicators of those of one color, in the order of the keys") {
  RestoredOptions options;
  for (const Streams streams : {Streams::at_once, Streams::late, Streams::random}) {
    options->streams = streams;
    ForkedRanks ranks(5, with_communicator(5, [](NcclRank& own) {
                        ncclComm_t part = nullptr;
                        const int color = own.rank == 4 ? NCCL_SPLIT_NOCOLOR : own.rank % 2;
                        const DeviceArray<int> all(5), few(2);
                        const DeviceArray<int> value(std::vector<int>{10 * own.rank});
                        require(ncclAllGather(value, all, 1, ncclInt32, own.comm, own.stream));
                        require(ncclCommSplit(own.comm, color, -own.rank, &part, nullptr));
                        if (!part) return std::string(own.rank == 4 ? "none" : "wrong");
                        int rank = -1, size = -1;
                        require(ncclCommUserRank(part, &rank));
                        require(ncclCommCount(part, &size));
                        require(ncclAllGather(value, few, 1, ncclInt32, part, own.stream));
                        runtime::synchronize(own.stream);
                        require(ncclCommDestroy(part));
                        return std::to_string(rank) + " of " + std::to_string(size) + ": " +
                               std::to_string(few[0]) + " " + std::to_string(few[1]) + ", " +
                               std::to_string(all[4]);
                      }));
    CHECK(ranks.report(0) == "1 of 2: 20 0, 40");
    CHECK(ranks.report(1) == "1 of 2: 30 10, 40");
    CHECK(ranks.report(2) == "0 of 2: 20 0, 40");
    CHECK(ranks.report(3) == "0 of 2: 30 10, 40");
    CHECK(ranks.report(4) == "none");
  }
}

namespace {
// What another stream, which does not wait, finds where a call receives: "old", "poison" or "new".
std::string found_too_early(NcclRank& own, Stream other) {
  const DeviceArray<float> part(std::vector<float>(3, 1.0f)), all(std::vector<float>(8, 2.0f)), copy(8);
  require(ncclAllGather(part, all + 1, 3, ncclFloat32, own.comm, own.stream));
  runtime::copy(copy, all, 8 * sizeof(float), other);
  runtime::synchronize(other);
  runtime::synchronize(own.stream);
  if (all.values() != std::vector<float>{2, 1, 1, 1, 1, 1, 1, 2}) return "wrong";
  if (copy[0] != 2 || copy[7] != 2) return "touched beside";
  return std::isnan(copy[1]) ? "poison" : copy[1] == 2 ? "old" : "new";
}
}  // namespace

TEST_CASE("nccl: who reads too early what a call receives finds NaN, until the data have come") {
  RestoredOptions options;
  options->streams = Streams::random;
  options->stream_races = false;  // which would refuse it
  ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                      const Stream other = runtime::create_stream();
                      std::set<std::string> found;
                      for (std::uint64_t seed = 1; seed <= 60; ++seed) {
                        on_simt::options().seed = seed;
                        found.insert(found_too_early(own, other));
                      }
                      std::string all;
                      for (const std::string& one : found) all += one + " ";
                      return all;
                    }));
  for (int r = 0; r < 2; ++r) CHECK(ranks.report(r) == "new old poison ");
}

TEST_CASE("nccl: another stream may neither write what a call sends nor touch what it receives") {
  using Touch = std::function<void(float* part, float* all, Stream other)>;
  const std::vector<std::pair<Touch, std::string>> touches = {
      {[](float* part, float*, Stream other) { runtime::set_zero(part, 4, other); },
       "sendbuff of ncclAllGather"},
      {[](float*, float* all, Stream other) { runtime::set_zero(all, 4, other); },
       "recvbuff of ncclAllGather"},
      {[](float* part, float* all, Stream other) { runtime::copy(part + 4, all, 4, other); },
       "recvbuff of ncclAllGather"},
      {[](float* part, float*, Stream other) { runtime::copy(part + 4, part, 4, other); }, "nothing"},
  };
  for (const auto& [touch, found] : touches) {
    ForkedRanks ranks(2, with_communicator(2, [&, &touch = touch](NcclRank& own) {
                        const Stream other = runtime::create_stream();
                        const DeviceArray<float> part(8), all(8);
                        require(ncclAllGather(part, all, 3, ncclFloat32, own.comm, own.stream));
                        const std::string report = report_of([&] { touch(part, all, other); });
                        runtime::synchronize(own.stream);
                        runtime::destroy_stream(other);
                        return report.empty() ? "nothing (test_simt_nccl.cpp:" : report;
                      }));
    for (int r = 0; r < 2; ++r)
      CHECK_THAT(ranks.report(r), ContainsSubstring(found + " (test_simt_nccl.cpp:"));
  }
}

TEST_CASE("nccl: a sum of floats depends on the call, within rounding") {
  const int size = 4, calls = 24;
  ForkedRanks ranks(
      size, with_communicator(size, [&](NcclRank& own) {
        const float values[] = {1.0f, 1e-7f, 3e-7f, -0.3f};
        const DeviceArray<float> send(std::vector<float>(static_cast<std::size_t>(size), values[own.rank])),
            receive(1);
        std::vector<float> sums;
        for (int call = 0; call < calls; ++call) {
          require(ncclReduceScatter(send, receive, 1, ncclFloat32, ncclSum, own.comm, own.stream));
          runtime::synchronize(own.stream);
          sums.push_back(receive[0]);
          if (std::abs(receive[0] - 0.7000004) > 2e-7) return std::string("wrong");
        }
        std::sort(sums.begin(), sums.end());
        return std::string(sums.front() < sums.back() ? "" : "always the same");
      }));
  for (int r = 0; r < size; ++r) CHECK(ranks.report(r) == "");
}

TEST_CASE("nccl: calls can be recorded and replayed") {
  ForkedRanks ranks(
      2, with_communicator(2, [](NcclRank& own) {
        const DeviceArray<float> part(1), all(2);
        runtime::begin_capture(own.stream);
        require(ncclAllGather(part, all, 1, ncclFloat32, own.comm, own.stream));
        const Graph graph = runtime::end_capture(own.stream);
        std::string faults;
        for (int step = 0; step < 5; ++step) {
          const float value = static_cast<float>(step * 10 + own.rank);
          runtime::upload(part, &value, sizeof value, own.stream);
          runtime::replay(graph, own.stream);
          runtime::synchronize(own.stream);
          if (all[0] != static_cast<float>(step * 10) || all[1] != static_cast<float>(step * 10 + 1))
            faults += "step " + std::to_string(step) + "; ";
        }
        runtime::destroy_graph(graph);
        own.finish();
        return faults;
      }));
  for (int r = 0; r < 2; ++r) CHECK(ranks.report(r) == "");
}

TEST_CASE("nccl: calls of one communicator follow each other, in whatever streams they are") {
  RestoredOptions options;
  options->streams = Streams::random;
  ForkedRanks ranks(2, with_communicator(2, [](NcclRank& own) {
                      const Stream other = runtime::create_stream();
                      std::string faults;
                      for (std::uint64_t seed = 1; seed <= 30; ++seed) {
                        on_simt::options().seed = seed + 100 * static_cast<std::uint64_t>(own.rank);
                        const DeviceArray<int> value(std::vector<int>{own.rank}), first(2), second(4),
                            third(2);
                        require(ncclAllGather(value, first, 1, ncclInt32, own.comm, own.stream));
                        require(ncclAllGather(first, second, 2, ncclInt32, own.comm, other));
                        require(ncclGroupStart());
                        require(ncclAllGather(second + 1, third, 1, ncclInt32, own.comm, own.stream));
                        require(ncclSend(second, 1, ncclInt32, 1 - own.rank, own.comm, other));
                        require(ncclRecv(value, 1, ncclInt32, 1 - own.rank, own.comm, other));
                        require(ncclGroupEnd());
                        runtime::synchronize(seed % 2 ? own.stream : other);
                        if (third.values() != std::vector<int>{1, 1} || value[0] != 0)
                          faults += "seed " + std::to_string(seed) + "; ";
                      }
                      return faults;
                    }));
  for (int r = 0; r < 2; ++r) CHECK(ranks.report(r) == "");
}
