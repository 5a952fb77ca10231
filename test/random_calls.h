// Random calls of a communicator whose every byte is checked.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/device.h"
#include "kernels/shared_exchange.h"

namespace goat::test {

using Bytes = std::vector<std::byte>;

// Byte i of what rank `from` sends rank `to` in a call.
inline std::byte byte_of(std::uint64_t call, int from, int to, std::size_t i) {
  return static_cast<std::byte>(
      (call * 131 + static_cast<std::uint64_t>(from * 31 + to * 7) + i * 13 + i / 251) %
      255);  // never the poison
}
inline Bytes bytes_of(std::uint64_t call, int from, int to, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = byte_of(call, from, to, i);
  return bytes;
}
inline void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

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
  // With an `exchange`, which is `ranks` itself, some are of bytes on the host.
  RandomCalls(Device& device, Communicator& ranks, SharedExchange* exchange, std::uint64_t seed,
              std::size_t most)
      : device_(device), ranks_(ranks), exchange_(exchange), rng_(seed), most_(most) {}

  std::string make(std::uint64_t call) {
    call_ = call;
    const std::uint64_t kind = rng_() % (exchange_ ? 6 : 4);
    const std::size_t sizes[] = {0, 1, 2 * (rng_() % 40) + 1, 64, 512, rng_() % most_ + 1};
    bytes_ = sizes[rng_() % 6];
    offset_ = rng_() % Memory::guard;
    const int root = static_cast<int>(rng_() % static_cast<std::uint64_t>(ranks_.size()));
    const bool right = kind == 0   ? all_to_all()
                       : kind == 1 ? all_gather(false)
                       : kind == 2 ? all_gather(true)
                       : kind == 3 ? broadcast(root)
                       : kind == 4 ? gather()
                                   : (exchange_->barrier(), true);
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
    return exchange_->gather(want[static_cast<std::size_t>(ranks_.rank())]) == want;
  }

  Device& device_;
  Communicator& ranks_;
  SharedExchange* exchange_;
  std::mt19937_64 rng_;
  std::size_t most_;
  std::uint64_t call_ = 0;
  std::size_t bytes_ = 0, offset_ = 0;
};

// A rank's part of a test of random calls, with pauses of its own.
inline std::string random_calls(Device& device, Communicator& ranks, SharedExchange* exchange,
                                std::uint64_t seed, int count, std::size_t most) {
  RandomCalls calls(device, ranks, exchange, seed, most);
  std::mt19937_64 pauses(seed + 1000 * static_cast<std::uint64_t>(ranks.rank() + 1));
  std::string faults;
  for (int call = 0; call < count && faults.size() < 500; ++call) {
    if (pauses() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 3000));
    faults += calls.make(static_cast<std::uint64_t>(call));
  }
  return faults;
}

}  // namespace goat::test
