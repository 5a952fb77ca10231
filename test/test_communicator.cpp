// What the communicators move: every byte to its place, in the order of the device's stream.
#include "kernels/communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/forked_ranks.h"
#include "test/operand.h"
#include "test/random_calls.h"

#ifdef GOAT_HAS_SIMT
#include "test/scoped_options.h"
#endif

using namespace goat;
using namespace goat::test;

namespace {
void check_random_calls(const std::string& device_name, int size, int count, std::size_t slot_bytes,
                        std::size_t most) {
  const std::uint64_t seed = fresh_seed();
  const std::string name = segment_name();
  INFO("device " << device_name << ", " << size << " ranks, GOAT_TEST_SEED=" << seed);
  ForkedRanks ranks(size, [&](int rank) {
    const auto device = open_device(device_name);
    SharedExchange exchange(setup_of(name, rank, size, slot_bytes));
    if (segment_exists(name)) return std::string("the segment still has its name");
    return random_calls(*device, exchange, &exchange, seed, count, most);
  });
  for (int r = 0; r < size; ++r) CHECK(ranks.report(r) == "");
  CHECK(!segment_exists(name));
}
}  // namespace

TEST_CASE(
    "communicator: random calls of ranks that pause at random arrive in full, in any number of rounds") {
  for (const std::string& device : device_names()) {
    const int count = device == "cpu" && !reduced() ? 700 : 60;
    for (const int size : {1, 2, 3, 4, 8}) check_random_calls(device, size, count, 512, 3000);
  }
}

TEST_CASE("communicator: megabytes through slots of a megabyte") {
  for (const std::string& device : device_names())
    for (const int size : {2, 3}) check_random_calls(device, size, reduced() ? 4 : 12, 1 << 20, 5 << 20);
}

TEST_CASE("communicator: one rank moves what it must, and nothing that is in its place") {
  for (const std::string& name : device_names()) {
    const auto device = open_device(name);
    const auto ranks = single_rank();
    CHECK(ranks->rank() == 0);
    CHECK(ranks->size() == 1);
    const std::uint64_t seed = fresh_seed();
    INFO("device " << name << ", GOAT_TEST_SEED=" << seed);
    CHECK(random_calls(*device, *ranks, nullptr, seed, 100, 3000) == "");
    Memory memory(*device, 5, 0);
    const Bytes bytes = bytes_of(0, 0, 0, 5);
    memory.set(bytes);
    ranks->all_to_all(*device, memory.data(), memory.data(), 5);
    CHECK(memory.holds(bytes));
  }
}

TEST_CASE("communicator: memory that overlaps or is missing, and a root that is no rank, are refused") {
  const auto complaint_of = [](auto call) -> std::string {
    try {
      call();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  std::byte memory[64];
  CHECK(complaint_of([&] { check_all_to_all(memory, memory + 32, 8, 4); }) == "");
  CHECK(complaint_of([&] { check_all_to_all(memory, memory + 31, 8, 4); }) ==
        "all_to_all: the memory to send overlaps that which receives");
  CHECK(complaint_of([&] { check_all_to_all(memory, memory, 8, 2); }) ==
        "all_to_all: the memory to send overlaps that which receives");
  CHECK(complaint_of([&] { check_all_to_all(nullptr, memory, 8, 2); }) == "all_to_all: receive is missing");
  CHECK(complaint_of([&] { check_all_to_all(memory, memory + 32, SIZE_MAX / 2, 4); }) ==
        "all_to_all: 9223372036854775807 bytes for each of 4 ranks are too many");
  CHECK(complaint_of([&] { check_all_gather(memory, memory + 16, 8, 2, 4); }) == "");
  CHECK(complaint_of([&] { check_all_gather(nullptr, nullptr, 0, 2, 4); }) == "");
  CHECK(complaint_of([&] { check_all_gather(memory, memory + 15, 8, 2, 4); }) ==
        "all_gather: the memory to send overlaps that which receives, and is not this rank's part of it");
  CHECK(complaint_of([&] { check_all_gather(memory, nullptr, 8, 2, 4); }) == "all_gather: send is missing");
  CHECK(complaint_of([&] { check_broadcast(memory, 8, 3, 4); }) == "");
  CHECK(complaint_of([&] { check_broadcast(memory, 8, 4, 4); }) ==
        "broadcast: root 4 is not a rank: there are 4");
  CHECK(complaint_of([&] { check_broadcast(memory, 8, -1, 4); }) ==
        "broadcast: root -1 is not a rank: there are 4");
}

#ifdef GOAT_HAS_SIMT
namespace {
// Sums over ranks as a step makes them: what is sent is computed by operations that may not have run yet, is
// overwritten by operations that follow, and what arrives is read by the next ones.
std::string sum_over_ranks(Communicator& ranks) {
  const auto device = open_device("simt");
  const std::int64_t size = ranks.size(), width = 37;
  const Operand send(*device, DType::f32, {size, width}, "send"),
      parts(*device, DType::f32, {size, width}, "parts"), all(*device, DType::f32, {size, width}, "all");
  const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
  std::string faults;
  for (int step = 0; step < 8; ++step) {
    const auto value = [&](int from, std::int64_t to) {
      return 100 * step + 10 * from + static_cast<int>(to);
    };
    for (std::int64_t r = 0; r < size; ++r)
      device->run(Fill{send.tensor().select(0, r), static_cast<float>(value(ranks.rank(), r))});
    ranks.all_to_all(*device, parts.tensor().data, send.tensor().data, bytes);
    device->run(Fill{send, -1});
    const Tensor own = all.tensor().select(0, ranks.rank());
    device->run(SumParts{own, parts});
    ranks.all_gather(*device, all.tensor().data, own.data, bytes);
    const Tensor first = send.tensor().select(0, 0);
    device->run(SumParts{first, all});
    ranks.broadcast(*device, first.data, bytes, step % ranks.size());
    double want = 0;
    for (int from = 0; from < ranks.size(); ++from)
      for (std::int64_t to = 0; to < size; ++to) want += value(from, to);
    if (values_of(*device, first) != std::vector<double>(37, want))
      faults += "step " + std::to_string(step) + " is wrong; ";
  }
  return faults;
}
}  // namespace

TEST_CASE("communicator: sees what was enqueued before, whenever the device runs it") {
  const auto names = device_names();
  if (std::find(names.begin(), names.end(), "simt") == names.end()) return;
  using enum on_simt::Streams;
  for (const auto streams : {at_once, late, random, urgent_first})
    for (const int size : {1, 3}) {
      const std::string name = segment_name();
      INFO("streams " << static_cast<int>(streams) << ", " << size << " ranks");
      RestoredOptions options;
      options->streams = streams;
      options->seed = fresh_seed();
      ForkedRanks ranks(size, [&](int rank) {
        SharedExchange exchange(setup_of(name, rank, size, 64));
        return sum_over_ranks(exchange);
      });
      for (int r = 0; r < size; ++r) CHECK(ranks.report(r) == "");
    }
}
#endif
