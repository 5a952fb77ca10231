// Ranks that are lost, leave, are late or call something else: the others are told, name it and do not hang.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "kernels/open/open_device.h"
#include "kernels/shared_segment.h"
#include "test/catch.h"
#include "test/forked_ranks.h"
#include "test/operand.h"

using namespace goat;
using namespace goat::test;
using std::chrono::milliseconds;

namespace {
using Clock = std::chrono::steady_clock;

// Nothing here depends on the device: enough if it is tested beside the cpu device.
bool is_left_out() {
  const auto names = device_names();
  return std::find(names.begin(), names.end(), "cpu") == names.end();
}

// Does something when the download of a given number begins: in the middle of a transfer.
class InterruptedDevice final : public CpuDevice {
 public:
  InterruptedDevice(int download, std::function<void()> act) : left_(download), act_(std::move(act)) {}
  void download(void* host, const void* device, std::size_t bytes) override {
    if (left_-- == 0) act_();
    CpuDevice::download(host, device, bytes);
  }

 private:
  int left_;
  std::function<void()> act_;
};

// 40 rounds of an all_gather through slots of 512 bytes.
void gather_much(Communicator& ranks, Device& device) {
  constexpr std::size_t bytes = 20'000;
  const std::size_t all = bytes * static_cast<std::size_t>(ranks.size());
  const DeviceBuffer send(device, bytes), receive(device, all);
  device.set_zero(send.data(), bytes);
  ranks.all_gather(device, receive.data(), send.data(), bytes);
}

// What a rank is told: "RankLost 1: ...", "thrown: ...", or "" if nothing.
std::string told(const std::function<void()>& work) {
  try {
    work();
  } catch (const RankLost& error) {
    return "RankLost " + std::to_string(error.rank) + ": " + error.what();
  } catch (const std::exception& error) {
    return std::string("thrown: ") + error.what();
  }
  return "";
}

constexpr int victim = 1, size = 3;

// Three ranks barrier, gather and barrier again, of which rank 1 does `act` in the middle of its gather. The
// others are told `expected`, in which PROCESS stands for the victim's.
void check_loss(const std::function<void()>& act, const std::string& expected,
                milliseconds limit = milliseconds(50'000)) {
  const std::string name = segment_name();
  const auto began = Clock::now();
  ForkedRanks ranks(size, [&](int rank) {
    auto setup = setup_of(name, rank, size);
    setup.time_limit = limit;
    SharedExchange exchange(setup);
    exchange.barrier();
    InterruptedDevice device(
        7, rank == victim ? act : [] {});
    const std::string first = told([&] { gather_much(exchange, device); });
    return first + told([&] { exchange.barrier(); });
  });
  std::string want = expected;
  if (const auto at = want.find("PROCESS"); at != std::string::npos)
    want.replace(at, 7, "rank 1 (" + ranks.process_of(victim) + ")");
  for (const int r : {0, 2}) {
    const std::string report = ranks.report(r);
    CHECK_THAT(report, ContainsSubstring("RankLost 1: " + want));
    const auto again = report.find("RankLost", 1);  // the next call throws the same
    REQUIRE(again != std::string::npos);
    CHECK(report.substr(0, again) == report.substr(again));
  }
  CHECK(Clock::now() - began < std::chrono::seconds(30));
  CHECK(!segment_exists(name));
}
}  // namespace

TEST_CASE("lost ranks: one that is killed, ends or fails in the middle of a transfer is named at once") {
  if (is_left_out()) return;
  check_loss([] { raise(SIGKILL); }, "PROCESS has ended; ");
  check_loss([] { _exit(3); }, "PROCESS has ended; ");
  check_loss([] { throw std::runtime_error("no more memory"); }, "PROCESS has failed: no more memory");
}

TEST_CASE("lost ranks: one that is stopped or late is named when the time limit is over") {
  if (is_left_out()) return;
  check_loss([] { raise(SIGSTOP); }, "PROCESS is stopped; ", milliseconds(600));
  check_loss([] { std::this_thread::sleep_for(std::chrono::seconds(20)); }, "PROCESS has not come; ",
             milliseconds(600));
}

TEST_CASE("lost ranks: one that has left takes no part; one that has made its last call is not missed") {
  if (is_left_out()) return;
  const std::string name = segment_name();
  ForkedRanks ranks(3, [&](int rank) {
    SharedExchange exchange(setup_of(name, rank, 3));
    exchange.barrier();
    if (rank == 2) std::this_thread::sleep_for(milliseconds(100));  // the others wait for this rank alone
    exchange.barrier();
    if (rank == 1) return std::string("left");
    return told([&] { exchange.broadcast(*open_device("cpu"), nullptr, 0, 2); });
  });
  CHECK(ranks.report(1) == "left");
  for (const int r : {0, 2}) {
    const std::string report = ranks.report(r);
    CHECK_THAT(report, ContainsSubstring("RankLost 1: rank 1 (" + ranks.process_of(1) + ") has "));
    CHECK_THAT(report, ContainsSubstring("call 3, broadcast of 0 bytes from rank 2"));
  }
}

TEST_CASE("lost ranks: what is stopped as a whole and goes on accuses nobody") {
  if (is_left_out()) return;
  const std::string name = segment_name();
  ForkedRanks ranks(2, [&](int rank) {
    auto setup = setup_of(name, rank, 2);
    setup.time_limit = milliseconds(400);
    SharedExchange exchange(setup);
    return told([&] {
      for (int call = 0; call < 10; ++call) {
        if (rank == 1) std::this_thread::sleep_for(milliseconds(80));
        exchange.barrier();
      }
    });
  });
  std::this_thread::sleep_for(milliseconds(300));
  for (const int r : {0, 1}) ranks.signal(r, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(700));
  for (const int r : {1, 0}) ranks.signal(r, SIGCONT);
  for (const int r : {0, 1}) CHECK(ranks.report(r) == "");
}

TEST_CASE("lost ranks: different calls are an error on all ranks, which names both") {
  if (is_left_out()) return;
  using Call = std::function<void(SharedExchange&, Device&)>;
  static std::byte memory[256];
  const Call gather8 = [](auto& ranks, auto& device) { ranks.all_gather(device, memory, memory + 128, 8); };
  const std::vector<std::pair<Call, std::string>> others = {
      {[](auto& ranks, auto&) { ranks.barrier(); }, "makes barrier"},
      {[](auto& ranks, auto& device) { ranks.all_gather(device, memory, memory + 128, 4); },
       "makes all_gather of 4 bytes of each rank"},
      {[](auto& ranks, auto& device) { ranks.all_to_all(device, memory, memory + 128, 8); },
       "makes all_to_all of 8 bytes for each rank"},
      {[](auto& ranks, auto& device) { ranks.broadcast(device, memory, 8, 1); },
       "makes broadcast of 8 bytes from rank 1"},
      {[](auto& ranks, auto& device) { gather_much(ranks, device); }, "makes all_gather of 20000 bytes"},
      {[](auto& ranks, auto&) { ranks.gather({}); }, "makes gather"},
  };
  for (const auto& [call, text] : others) {
    const std::string name = segment_name();
    ForkedRanks ranks(3, [&, &other = call](int rank) {
      SharedExchange exchange(setup_of(name, rank, 3));
      const auto device = open_device("cpu");
      exchange.barrier();
      return told([&] { (rank == 1 ? other : gather8)(exchange, *device); });
    });
    for (int r = 0; r < 3; ++r) {
      const std::string report = ranks.report(r);
      CHECK_THAT(report, ContainsSubstring("thrown: call 2 of the communicator: rank"));
      CHECK_THAT(report, ContainsSubstring("rank 1 (" + ranks.process_of(1) + ") " + text));
      CHECK_THAT(report, ContainsSubstring("makes all_gather of 8 bytes of each rank"));
    }
  }
}

TEST_CASE("lost ranks: roots that differ, and an error in the operands of one rank") {
  if (is_left_out()) return;
  for (const bool differ : {true, false}) {
    const std::string name = segment_name();
    ForkedRanks ranks(2, [&](int rank) {
      SharedExchange exchange(setup_of(name, rank, 2));
      const auto device = open_device("cpu");
      std::byte memory[8] = {};
      return told([&] { exchange.broadcast(*device, memory, 8, differ ? rank : 7 * rank); });
    });
    const std::string first = ranks.report(0), second = ranks.report(1);
    CHECK_THAT(first, ContainsSubstring(differ ? "8 bytes from rank 0, rank 1"
                                               : "RankLost 1: rank 1 (" + ranks.process_of(1) +
                                                     ") has failed: broadcast: root 7 is not a rank"));
    CHECK_THAT(second, ContainsSubstring(differ ? "8 bytes from rank 1, rank 0"
                                                : "thrown: broadcast: root 7 is not a rank"));
  }
}

// ------------------------------------------------------------------------------------------------- attaching
namespace {
// An exchange whose other ranks may never come.
std::string attach(const std::string& name, int rank, int ranks, std::uint64_t nonce = 77,
                   milliseconds limit = milliseconds(50'000)) {
  return told([&] {
    auto setup = setup_of(name, rank, ranks);
    setup.nonce = nonce;
    setup.start_limit = limit;
    SharedExchange(setup).barrier();
  });
}
}  // namespace

TEST_CASE("lost ranks: what a killed run has left is replaced; a run that goes on keeps its name") {
  if (is_left_out()) return;
  const std::string name = segment_name();
  ForkedRanks killed(1, [&](int) { return attach(name, 0, 2, 11); });
  killed.wait_until_attached(0, name);
  const std::string refused = attach(name, 0, 2, 77);
  CHECK_THAT(refused, ContainsSubstring("thrown: shared memory /dev/shm/" + name +
                                        ": a run that is still going on uses this name"));
  killed.signal(0, SIGKILL);
  CHECK(killed.report(0) == "");
  REQUIRE(segment_exists(name));
  const auto start_two = [&] {
    ForkedRanks ranks;  // rank 1 finds what stands there first, and waits
    ranks.start(1, [&](int) { return attach(name, 1, 2, 77); });
    std::this_thread::sleep_for(milliseconds(50));
    ranks.start(0, [&](int) { return attach(name, 0, 2, 77); });
    CHECK(ranks.report(0) == "");
    CHECK(ranks.report(1) == "");
    CHECK(!segment_exists(name));
  };
  start_two();
  close(shm_open(("/" + name).c_str(), O_RDWR | O_CREAT, 0600));  // killed before it had any memory
  start_two();
}

TEST_CASE("lost ranks: a run removes what killed runs of other names have left, and nothing else") {
  const std::string prefix = "goat-test-" + std::to_string(getpid()) + "-";
  const auto path = [&](const std::string& end) { return "/dev/shm/" + prefix + end; };
  const SharedSegment held = SharedSegment::create("/" + prefix + "1", 64);
  for (const std::string end : {"2", "3", "4x", "5"}) std::ofstream(path(end)) << "left";
  std::filesystem::create_directory(path("6"));
  if (geteuid() == 0) REQUIRE(chown(path("5").c_str(), 65534, 65534) == 0);
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::seconds(70);
  for (const std::string end : {"1", "2", "4x", "5", "6"})
    std::filesystem::last_write_time(path(end), long_ago);
  SharedSegment::remove_left_over(prefix);
  CHECK(std::filesystem::exists(path("1")));  // its creator lives
  CHECK_FALSE(std::filesystem::exists(path("2")));
  CHECK(std::filesystem::exists(path("3")));                      // it may be about to be locked
  CHECK(std::filesystem::exists(path("4x")));                     // no name of a run
  CHECK(std::filesystem::exists(path("5")) == (geteuid() == 0));  // another user's
  CHECK(std::filesystem::exists(path("6")));
  for (const std::string end : {"2", "3", "4x", "5", "6"}) std::filesystem::remove(path(end));
}

TEST_CASE("lost ranks: attaching ends in time, names who is missing and leaves nothing") {
  if (is_left_out()) return;
  const std::string name = segment_name(), segment = "shared memory /dev/shm/" + name + ": ";
  CHECK(attach(name, 1, 2, 77, milliseconds(100)) ==
        "thrown: " + segment + "rank 0 has not made it within 0.1 s");
  CHECK(attach(name, 0, 3, 77, milliseconds(100)) ==
        "thrown: " + segment + "within 0.1 s there is no rank 1, 2");
  CHECK(!segment_exists(name));
  CHECK_THAT(attach(name, 2, 2), ContainsSubstring("rank 2 of 2, nonce 77: expected 0 <= rank < size"));
  CHECK_THAT(attach("a/b", 0, 2), ContainsSubstring("a name without '/'"));

  // Rank 1 is killed while rank 2 is awaited.
  ForkedRanks ranks(2, [&](int rank) { return attach(name, rank, 3); });
  ranks.wait_until_attached(1, name);
  ranks.signal(1, SIGKILL);
  CHECK(ranks.report(0) ==
        "RankLost 1: rank 1 (" + ranks.process_of(1) + ") has ended before all ranks were there");
  CHECK(!segment_exists(name));
}

TEST_CASE("lost ranks: a rank that is there twice, and another number of ranks, are refused") {
  if (is_left_out()) return;
  const std::string name = segment_name();
  ForkedRanks ranks;
  for (const int rank : {0, 1, 1}) ranks.start(rank, [&](int own) { return attach(name, own, 3); });
  const int refused = ranks.first_to_end(), taken = 3 - refused;
  REQUIRE((refused == 1 || refused == 2));
  CHECK(ranks.report(refused) == "thrown: shared memory /dev/shm/" + name + ": two processes are rank 1 (" +
                                     ranks.process_of(taken) + ") and this one, " +
                                     ranks.process_of(refused).substr(8));
  CHECK(attach(name, 1, 2) ==
        "thrown: shared memory /dev/shm/" + name + ": rank 1 was told of 2 ranks, rank 0 of 3");
  ranks.start(2, [&](int) { return attach(name, 2, 3); });
  for (const int i : {0, taken, 3}) CHECK(ranks.report(i) == "");
  CHECK(!segment_exists(name));
}

TEST_CASE("lost ranks: ranks that do not see each other's processes are refused") {
  if (is_left_out()) return;
  const std::string name = segment_name();
  ForkedRanks ranks(2, [&](int rank) {
    if (rank == 0) return attach(name, 0, 2, 77, std::chrono::seconds(5));
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return std::string("not allowed here");
    ForkedRanks first_of_its_space;
    first_of_its_space.start(1, [&](int) { return attach(name, 1, 2); });
    return first_of_its_space.report(0);
  });
  const std::string refused = ranks.report(1);
  if (refused == "not allowed here") return;
  for (const std::string& report : {ranks.report(0), refused})
    CHECK_THAT(report, ContainsSubstring("are in different containers"));
}

TEST_CASE("lost ranks: all killed at once, or rank 0 while the others attach, leave no segment") {
  if (is_left_out()) return;
  const std::string name = segment_name();
  {
    ForkedRanks ranks(3, [&](int rank) {
      SharedExchange exchange(setup_of(name, rank, 3));
      const auto device = open_device("cpu");
      for (;;) gather_much(exchange, *device);
      return std::string();
    });
    for (const int r : {0, 1, 2}) ranks.wait_until_attached(r, name);
  }
  CHECK(!segment_exists(name));

  ForkedRanks ranks(2, [&](int rank) { return attach(name, rank, 3); });
  ranks.wait_until_attached(1, name);
  ranks.signal(0, SIGKILL);
  CHECK(ranks.report(1) ==
        "RankLost 0: rank 0 (" + ranks.process_of(0) + ") has ended before all ranks were there");
  CHECK(!segment_exists(name));
}
