#include "kernels/simt/nccl_board.h"

#include <algorithm>

#include "kernels/simt/nccl_random.h"

namespace goat::on_simt {

const char* name_of(NcclKind kind) {
  switch (kind) {
    case NcclKind::send: return "ncclSend";
    case NcclKind::receive: return "ncclRecv";
    case NcclKind::all_to_all: return "ncclAlltoAll";
    case NcclKind::all_gather: return "ncclAllGather";
    case NcclKind::broadcast: return "ncclBroadcast";
    case NcclKind::reduce_scatter: return "ncclReduceScatter";
    case NcclKind::split: return "ncclCommSplit";
  }
  return "an unknown call";
}

std::string NcclRecord::text() const { return std::string(name_of(kind)) + " (" + place + ")"; }

NcclSequence counterpart(const NcclSequence& sequence, int own) {
  if (is_collective(sequence.kind)) return sequence;
  return {sequence.kind == NcclKind::send ? NcclKind::receive : NcclKind::send, own};
}

namespace {
std::string segment_name(std::uint64_t digits) { return "goat-" + std::to_string(digits); }
std::string own_segment_name(std::uint64_t digits) { return segment_name(mixed(digits, 1)); }

SharedExchangeSetup exchange_setup(std::uint64_t digits, int rank, int size) {
  SharedExchangeSetup setup;
  setup.name = segment_name(digits);
  setup.nonce = digits | 1;
  setup.rank = rank;
  setup.size = size;
  setup.slot_bytes = 4096;
  return setup;
}
}  // namespace

// The others look for the segment after the exchange has told them that rank 0 has made it.
NcclBoard::NcclBoard(std::uint64_t digits, int rank, int size)
    : digits_(digits),
      rank_(rank),
      size_(static_cast<std::size_t>(size)),
      mailbox_bytes_(
          std::clamp<std::size_t>((std::size_t{4} << 20) / (size_ * size_) / 64 * 64, 4096, 1 << 18)) {
  const std::string name = "/" + own_segment_name(digits);
  if (rank == 0) segment_.emplace(SharedSegment::create(name, bytes()));
  exchange_ = std::make_unique<SharedExchange>(exchange_setup(digits, rank, size));
  if (rank != 0) {
    auto found = SharedSegment::open(name);
    if (!found || found->bytes() != bytes())
      throw std::runtime_error("shared memory /dev/shm" + name + " is not rank 0's");
    segment_.emplace(std::move(*found));
  }
  place(rank).process = this_process();
  exchange_->barrier();
  segment_->remove_name();
}

void NcclBoard::remove_names(std::uint64_t digits) noexcept {
  SharedSegment::remove(segment_name(digits));
  SharedSegment::remove(own_segment_name(digits));
}

// ------------------------------------------------------------------------------------------------- layout
// The places, then the logs of each rank (of collectives, to and from each rank), then the mailboxes.
std::size_t NcclBoard::bytes() const {
  return size_ * (sizeof(Place) + (1 + 2 * size_) * sizeof(Log)) +
         2 * size_ * size_ * (sizeof(NcclMailbox) + mailbox_bytes_) + alignof(NcclMailbox);
}

NcclBoard::Place& NcclBoard::place(int rank) const { return static_cast<Place*>(segment_->data())[rank]; }

NcclBoard::Log& NcclBoard::log(int rank, const NcclSequence& sequence) const {
  const auto peer = static_cast<std::size_t>(sequence.peer);
  const std::size_t index = is_collective(sequence.kind)      ? 0
                            : sequence.kind == NcclKind::send ? 1 + peer
                                                              : 1 + size_ + peer;
  auto* logs = reinterpret_cast<Log*>(static_cast<Place*>(segment_->data()) + size_);
  return logs[static_cast<std::size_t>(rank) * (1 + 2 * size_) + index];
}

NcclMailbox& NcclBoard::mailbox(bool collective, int from, int to) const {
  auto* end = static_cast<std::byte*>(segment_->data()) + bytes() - alignof(NcclMailbox);
  end -= reinterpret_cast<std::uintptr_t>(end) % alignof(NcclMailbox);
  const std::size_t index =
      (static_cast<std::size_t>(from) * size_ + static_cast<std::size_t>(to)) * 2 + collective;
  return *reinterpret_cast<NcclMailbox*>(end - (index + 1) * (sizeof(NcclMailbox) + mailbox_bytes_));
}

std::string NcclBoard::name_of(int rank) const {
  return "rank " + std::to_string(rank) + " (process " + std::to_string(process(rank).pid) + ")";
}

// ------------------------------------------------------------------------------------------------- calls
void NcclBoard::add(const NcclSequence& sequence, const NcclRecord& record) {
  Log& own = log(rank(), sequence);
  const std::uint64_t before = own.count.load();
  own.records[before % kept] = record;
  own.count.store(before + 1);
}

void NcclBoard::publish(std::uint64_t epoch) { place(rank()).published.store(epoch); }
std::uint64_t NcclBoard::published(int rank) const { return place(rank).published.load(); }

std::uint64_t NcclBoard::count(int rank, const NcclSequence& sequence) const {
  return log(rank, sequence).count.load();
}

// Half of the log is kept clear of the rank that may be writing to it.
const NcclRecord* NcclBoard::find(int rank, const NcclSequence& sequence, std::uint64_t number) const {
  const Log& of_rank = log(rank, sequence);
  const std::uint64_t count = of_rank.count.load();
  return number <= count && count - number < kept / 2 ? &of_rank.records[(number - 1) % kept] : nullptr;
}

// ------------------------------------------------------------------------------------------------- failures
void NcclBoard::leave() {
  Presence expected = Presence::present;
  place(rank()).presence.compare_exchange_strong(expected, Presence::left);
}

void NcclBoard::fail(int lost, const std::string& reason) {
  Place& own = place(rank());
  if (own.presence.load() == Presence::failed) return;
  own.lost = lost;
  own.reason[reason.copy(own.reason, sizeof own.reason - 1)] = 0;
  own.presence.store(Presence::failed);
}

std::optional<RankLost> NcclBoard::lost(int rank, const std::string& waiting) const {
  const Place& other = place(rank);
  const Presence presence = other.presence.load();
  if (presence == Presence::failed) return RankLost(other.lost, other.reason);
  if (presence == Presence::left)
    return RankLost(rank, name_of(rank) + " has left its communicator; " + waiting);
  if (state_of(other.process) == ProcessState::ended)
    return RankLost(rank, name_of(rank) + " has ended; " + waiting);
  return std::nullopt;
}

}  // namespace goat::on_simt
