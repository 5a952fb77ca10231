// What the communicators move: every byte to its place, in the order of the device's stream.
#include "kernels/communicator.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/forked_ranks.h"
#include "test/operand.h"

#ifdef GOAT_HAS_SIMT
#include "test/scoped_options.h"
#endif

using namespace goat;
using namespace goat::test;

namespace {
using Bytes = std::vector<std::byte>;

// Byte i of what rank `from` sends rank `to` in a call.
std::byte byte_of(std::uint64_t call, int from, int to, std::size_t i) {
  return static_cast<std::byte>(
      (call * 131 + static_cast<std::uint64_t>(from * 31 + to * 7) + i * 13 + i / 251) %
      255);  // never the poison
}
Bytes bytes_of(std::uint64_t call, int from, int to, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = byte_of(call, from, to, i);
  return bytes;
}
void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

// Device memory that begins at any address, between poisoned bytes.
class Memory {
 public:
  Memory(Device& device, std::size_t bytes, std::size_t offset)
      : device_(device), buffer_(device, bytes + 2 * guard), bytes_(bytes), offset_(offset) {
    const Bytes poison(bytes + 2 * guard, std::byte{255});
    device.upload(buffer_.data(), poison.data(), poison.size());
  }
  std::byte* data() const { return static_cast<std::byte*>(buffer_.data()) + offset_; }
  void set(const Bytes& bytes, std::size_t at = 0) {
    device_.upload(data() + at, bytes.data(), bytes.size());
  }
  // Whether it holds these bytes, and all around is as it was.
  bool holds(const Bytes& bytes) const {
    Bytes want(bytes_ + 2 * guard, std::byte{255}), got(want.size());
    std::copy(bytes.begin(), bytes.end(), want.begin() + static_cast<std::ptrdiff_t>(offset_));
    device_.download(got.data(), buffer_.data(), got.size());
    return bytes.size() == bytes_ && got == want;
  }
  static constexpr std::size_t guard = 64;

 private:
  Device& device_;
  DeviceBuffer buffer_;
  std::size_t bytes_, offset_;
};

// One call of a kind with random sizes, the same on all ranks. Returns what is wrong.
class RandomCalls {
 public:
  RandomCalls(Device& device, Communicator& ranks, std::uint64_t seed, std::size_t most)
      : device_(device), ranks_(ranks), rng_(seed), most_(most) {}

  std::string make(std::uint64_t call) {
    call_ = call;
    const std::uint64_t kind = rng_() % 6;
    const std::size_t sizes[] = {0, 1, 2 * (rng_() % 40) + 1, 64, 512, rng_() % most_ + 1};
    bytes_ = sizes[rng_() % 6];
    offset_ = rng_() % Memory::guard;
    const int root = static_cast<int>(rng_() % static_cast<std::uint64_t>(ranks_.size()));
    const bool right = kind == 0   ? all_to_all()
                       : kind == 1 ? all_gather(false)
                       : kind == 2 ? all_gather(true)
                       : kind == 3 ? broadcast(root)
                       : kind == 4 ? gather()
                                   : (ranks_.barrier(), true);
    if (right) return "";
    return "call " + std::to_string(call) + " of kind " + std::to_string(kind) + " with " +
           std::to_string(bytes_) + " bytes is wrong at rank " + std::to_string(ranks_.rank()) + "; ";
  }

 private:
  bool all_to_all() {
    const int own = ranks_.rank(), size = ranks_.size();
    const std::size_t all = bytes_ * static_cast<std::size_t>(size);
    Memory send(device_, all, offset_), receive(device_, all, Memory::guard - offset_);
    Bytes sent, want;
    for (int r = 0; r < size; ++r) {
      append(sent, bytes_of(call_, own, r, bytes_));
      append(want, bytes_of(call_, r, own, bytes_));
    }
    send.set(sent);
    ranks_.all_to_all(device_, receive.data(), send.data(), bytes_);
    return receive.holds(want) && send.holds(sent);
  }

  bool all_gather(bool in_place) {
    const int own = ranks_.rank(), size = ranks_.size();
    Memory send(device_, bytes_, offset_), receive(device_, bytes_ * static_cast<std::size_t>(size), 7);
    const Bytes sent = bytes_of(call_, own, 0, bytes_);
    const std::size_t place = static_cast<std::size_t>(own) * bytes_;
    Bytes want;
    for (int r = 0; r < size; ++r) append(want, bytes_of(call_, r, 0, bytes_));
    send.set(sent);
    if (in_place) receive.set(sent, place);
    ranks_.all_gather(device_, receive.data(), in_place ? receive.data() + place : send.data(), bytes_);
    return receive.holds(want) && send.holds(sent);
  }

  bool broadcast(int root) {
    Memory memory(device_, bytes_, offset_);
    if (ranks_.rank() == root) memory.set(bytes_of(call_, root, 0, bytes_));
    ranks_.broadcast(device_, memory.data(), bytes_, root);
    return memory.holds(bytes_of(call_, root, 0, bytes_));
  }

  // Every rank has another length.
  bool gather() {
    const auto length_of = [&](int r) { return r == 1 ? 0 : bytes_ * static_cast<std::size_t>(r + 1) / 2; };
    std::vector<Bytes> want;
    for (int r = 0; r < ranks_.size(); ++r) want.push_back(bytes_of(call_, r, 0, length_of(r)));
    return ranks_.gather(want[static_cast<std::size_t>(ranks_.rank())]) == want;
  }

  Device& device_;
  Communicator& ranks_;
  Rng rng_;
  std::size_t most_;
  std::uint64_t call_ = 0;
  std::size_t bytes_ = 0, offset_ = 0;
};

// A rank's part of a test of random calls, with pauses of its own.
std::string random_calls(Device& device, Communicator& ranks, std::uint64_t seed, int count,
                         std::size_t most) {
  RandomCalls calls(device, ranks, seed, most);
  Rng pauses(seed + 1000 * static_cast<std::uint64_t>(ranks.rank() + 1));
  std::string faults;
  for (int call = 0; call < count && faults.size() < 500; ++call) {
    if (pauses() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 3000));
    faults += calls.make(static_cast<std::uint64_t>(call));
  }
  return faults;
}

void check_random_calls(const std::string& device_name, int size, int count, std::size_t slot_bytes,
                        std::size_t most) {
  const std::uint64_t seed = fresh_seed();
  const std::string name = segment_name();
  INFO("device " << device_name << ", " << size << " ranks, GOAT_TEST_SEED=" << seed);
  ForkedRanks ranks(size, [&](int rank) {
    const auto device = open_device(device_name);
    SharedExchange exchange(setup_of(name, rank, size, slot_bytes));
    if (segment_exists(name)) return std::string("the segment still has its name");
    return random_calls(*device, exchange, seed, count, most);
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
    CHECK(random_calls(*device, *ranks, seed, 100, 3000) == "");
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
  for (const auto streams : {on_simt::Streams::at_once, on_simt::Streams::late, on_simt::Streams::random})
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
