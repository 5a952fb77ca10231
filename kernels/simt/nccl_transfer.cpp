#include "kernels/simt/nccl_transfer.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/bf16_bits.h"
#include "kernels/simt/nccl_random.h"
#include "kernels/simt/options.h"

namespace goat::on_simt {

namespace {
using Steady = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr microseconds shortest_pause{20}, longest_pause{500}, look_interval{10'000};

bool begins_within(const NcclRange& inner, const NcclRange& outer) {
  return inner.data >= outer.data && inner.data < outer.data + outer.bytes;
}

void set_poison(const std::byte* from, const std::byte* to) {
  if (from < to) std::memset(const_cast<std::byte*>(from), 0xFF, static_cast<std::size_t>(to - from));
}

template <class T>
T sum(T a, T b) {
  return a + b;
}
std::uint16_t sum(std::uint16_t a, std::uint16_t b) { return bf16_bits(bf16_value(a) + bf16_value(b)); }

// result[i] = parts[order[0] * count + i] + parts[order[1] * count + i] ..., from left to right.
template <class T>
void add_parts(void* result, const std::byte* parts, std::size_t count,
               const std::vector<std::size_t>& order) {
  for (std::size_t i = 0; i < count; ++i) {
    T total{};
    for (std::size_t n = 0; n < order.size(); ++n) {
      T part;
      std::memcpy(&part, parts + (order[n] * count + i) * sizeof(T), sizeof(T));
      total = n == 0 ? part : sum(total, part);
    }
    std::memcpy(static_cast<std::byte*>(result) + i * sizeof(T), &total, sizeof(T));
  }
}
}  // namespace

NcclTransfer::NcclTransfer(std::vector<NcclCall> calls)
    : calls_(std::move(calls)), comm_(*calls_.front().comm), board_(comm_.board) {}

// In place, a call sends part of the memory that receives: that part is not poisoned.
void NcclTransfer::poison() const {
  if (!options().poison) return;
  for (const NcclCall& call : calls_) {
    const std::vector<NcclRange> ranges = ranges_of(call);
    for (const NcclRange& written : ranges) {
      if (!written.writes) continue;
      NcclRange spared{written.data, 0, false, ""};
      for (const NcclRange& read : ranges)
        if (!read.writes && (begins_within(read, written) || begins_within(written, read))) spared = read;
      set_poison(written.data, spared.data);
      set_poison(spared.data + spared.bytes, written.data + written.bytes);
    }
  }
}

void NcclTransfer::run() {
  try {
    suffer();
    lanes_.clear();
    parts_.clear();
    for (const NcclCall& call : calls_) {
      require_device_memory(call);
      prepare(call);
    }
    move();
    for (const NcclCall& call : calls_)
      if (call.kind == NcclKind::reduce_scatter) add_up(call);
  } catch (const RankLost& error) {
    NcclProcess::instance().fail(comm_, ncclRemoteError, error.rank, error.what());
    throw;
  } catch (const std::exception& error) {
    if (comm_.aborted) throw;
    NcclProcess::instance().fail(comm_, ncclInternalError, comm_.rank,
                                 board_->name_of(comm_.rank) + " has failed: " + error.what());
    throw;
  }
}

// What the options do to a call.
void NcclTransfer::suffer() {
  const Options& chosen = options();
  for (const NcclCall& call : calls_) {
    require_not_aborted(comm_, call.text());
    if (chosen.nccl_delay > 0) {
      const auto most = static_cast<std::uint64_t>(chosen.nccl_delay) * 1000;
      const std::uint64_t seed = mixed(chosen.seed, static_cast<std::uint64_t>(comm_.first_rank));
      std::this_thread::sleep_for(microseconds(mixed(seed, call.number) % (most + 1)));
    }
    const NcclFailure& planned = chosen.nccl_failure;
    if (planned.rank != comm_.first_rank || planned.call != call.number) continue;
    dies_ = planned.fault == NcclFault::death;
    while (planned.fault == NcclFault::silence || planned.fault == NcclFault::async) {
      require_not_aborted(comm_, call.text());
      std::this_thread::sleep_for(longest_pause);
    }
  }
}

// Copies what stays on this rank, and collects what travels.
void NcclTransfer::prepare(const NcclCall& call) {
  const std::size_t bytes = call.bytes(), own = static_cast<std::size_t>(comm_.rank) * bytes;
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* receive = static_cast<std::byte*>(call.receive);
  const auto part_of = [&](auto* memory, int rank) {
    return memory + static_cast<std::size_t>(rank) * bytes;
  };
  const auto keep = [&](std::byte* to, const std::byte* from) {
    if (to != from && bytes > 0) std::memcpy(to, from, bytes);
  };
  switch (call.kind) {
    case NcclKind::send: return add(call, true, call.root, send);
    case NcclKind::receive: return add(call, false, call.root, receive);
    case NcclKind::broadcast:
      if (comm_.rank != call.root) return add(call, false, call.root, receive);
      keep(receive, send);
      for (const int r : call.peers()) add(call, true, r, send);
      return;
    case NcclKind::all_gather:
      keep(receive + own, send);
      for (const int r : call.peers()) {
        add(call, true, r, send);
        add(call, false, r, part_of(receive, r));
      }
      return;
    case NcclKind::reduce_scatter:
      receive = parts_.emplace_back(bytes * static_cast<std::size_t>(comm_.size)).data();
      [[fallthrough]];
    case NcclKind::all_to_all:
      keep(receive + own, send + own);
      for (const int r : call.peers()) {
        add(call, true, r, part_of(send, r));
        add(call, false, r, part_of(receive, r));
      }
      return;
    case NcclKind::split: return;
  }
}

void NcclTransfer::add(const NcclCall& call, bool sends, int peer, const void* memory) {
  if (call.bytes() == 0) return;
  const bool collective = is_collective(call.kind);
  auto lane = std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& known) {
    return known.sends == sends && known.collective == collective && known.peer == peer;
  });
  if (lane == lanes_.end()) lane = lanes_.insert(lane, Lane{sends, collective, peer});
  lane->parcels.push_back({const_cast<std::byte*>(static_cast<const std::byte*>(memory)), call.bytes()});
}

// ------------------------------------------------------------------------------------------------- moving
void NcclTransfer::move() {
  microseconds pause = shortest_pause;
  Steady::time_point looked = Steady::now();
  while (!std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) { return is_over(lane); })) {
    bool moved = false;
    for (Lane& lane : lanes_)
      while (step(lane)) moved = true;
    if (moved) {
      pause = shortest_pause;
      continue;
    }
    require_not_aborted(comm_, calls_.front().text());
    if (Steady::now() - looked > look_interval) {
      for (const Lane& lane : lanes_) look_after(lane);
      looked = Steady::now();
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
  }
}

NcclMailbox& NcclTransfer::mailbox(const Lane& lane) const {
  return lane.sends ? board_->mailbox(lane.collective, comm_.rank, lane.peer)
                    : board_->mailbox(lane.collective, lane.peer, comm_.rank);
}

// What was sent must have been taken, so that a program that relies on mailboxes is found.
bool NcclTransfer::is_over(const Lane& lane) const {
  return lane.next == lane.parcels.size() &&
         !(lane.sends && mailbox(lane).full.load(std::memory_order_acquire) != 0);
}

bool NcclTransfer::is_ready(const Lane& lane) const {
  return lane.next < lane.parcels.size() &&
         (mailbox(lane).full.load(std::memory_order_acquire) != 0) != lane.sends;
}

// Moves the next part, if the mailbox is ready.
bool NcclTransfer::step(Lane& lane) {
  if (!is_ready(lane)) return false;
  NcclMailbox& box = mailbox(lane);
  const Parcel& parcel = lane.parcels[lane.next];
  std::byte* memory = parcel.memory + lane.done;
  if (lane.sends) {
    box.total = parcel.bytes;
    box.bytes = static_cast<std::uint32_t>(std::min(board_->mailbox_bytes(), parcel.bytes - lane.done));
    std::memcpy(box.data(), memory, dies_ ? box.bytes / 2 : box.bytes);
    if (dies_) std::raise(SIGKILL);
  } else {
    if (box.total != parcel.bytes)
      throw std::runtime_error(calls_.front().text() + " or another call of its group: " + comm_.name() +
                               " expects " + std::to_string(parcel.bytes) + " bytes, " +
                               board_->name_of(lane.peer) + " sends " + std::to_string(box.total));
    if (dies_) std::raise(SIGKILL);
    std::memcpy(memory, box.data(), box.bytes);
  }
  lane.done += box.bytes;
  box.full.store(lane.sends, std::memory_order_release);
  if (lane.done == parcel.bytes) {
    lane.done = 0;
    ++lane.next;
  }
  return true;
}

// A rank may have posted its last part before it ended: so that is looked for again.
void NcclTransfer::look_after(const Lane& lane) const {
  if (is_over(lane)) return;
  const auto lost =
      board_->lost(lane.peer, board_->name_of(comm_.rank) + " waited for it in " + calls_.front().text());
  if (lost && !is_ready(lane) && !is_over(lane)) throw *lost;
}

// ------------------------------------------------------------------------------------------------- sums
void NcclTransfer::add_up(const NcclCall& call) const {
  std::size_t index = 0;
  for (const NcclCall& other : calls_) {
    if (&other == &call) break;
    index += other.kind == NcclKind::reduce_scatter;
  }
  std::vector<std::size_t> order(static_cast<std::size_t>(comm_.size));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(),
               std::mt19937_64(mixed(mixed(options().seed, call.number), board_->digits())));
  const std::byte* parts = parts_[index].data();
  switch (call.type) {
    case ncclFloat32: return add_parts<float>(call.receive, parts, call.count, order);
    case ncclFloat64: return add_parts<double>(call.receive, parts, call.count, order);
    case ncclBfloat16: return add_parts<std::uint16_t>(call.receive, parts, call.count, order);
    case ncclInt32: return add_parts<std::uint32_t>(call.receive, parts, call.count, order);
    case ncclInt64: return add_parts<std::uint64_t>(call.receive, parts, call.count, order);
    default: return;  // require_simulated lets none other through
  }
}

}  // namespace goat::on_simt
