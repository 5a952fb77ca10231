// What a call of NCCL must be: its arguments, its group, and what the other ranks call.
#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/nccl_comm.h"
#include "kernels/simt/nccl_random.h"
#include "kernels/simt/options.h"
#include "kernels/simt/report.h"

namespace goat::on_simt {

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

std::string place_of(const Where& where) {
  return source_place(where.file_name(), static_cast<int>(where.line()));
}

std::string NcclCall::text() const { return std::string(name_of(kind)) + " (" + place_of(where) + ")"; }
std::uint64_t NcclCall::bytes() const { return count * size_of(type); }

std::vector<int> NcclCall::peers() const {
  std::vector<int> others;
  if (!is_collective(kind)) {
    if (root != comm->rank) others.push_back(root);
    return others;
  }
  for (int step = 1; step < comm->size; ++step) others.push_back((comm->rank + step) % comm->size);
  return others;
}

// Broadcast ignores what the others than the root would send.
std::vector<NcclRange> ranges_of(const NcclCall& call) {
  const auto part = static_cast<std::size_t>(call.bytes()),
             all = part * static_cast<std::size_t>(call.comm->size);
  std::vector<NcclRange> ranges;
  const auto reads = [&](std::size_t bytes) {
    ranges.push_back({static_cast<const std::byte*>(call.send), bytes, false, "sendbuff"});
  };
  const auto writes = [&](std::size_t bytes) {
    ranges.push_back({static_cast<const std::byte*>(call.receive), bytes, true, "recvbuff"});
  };
  switch (call.kind) {
    case NcclKind::send: reads(part); break;
    case NcclKind::receive: writes(part); break;
    case NcclKind::all_to_all: reads(all), writes(all); break;
    case NcclKind::all_gather: reads(part), writes(all); break;
    case NcclKind::reduce_scatter: reads(all), writes(part); break;
    case NcclKind::broadcast:
      if (call.comm->rank == call.root) reads(part);
      writes(part);
      break;
    case NcclKind::split: break;
  }
  return ranges;
}

namespace {
std::string who(const NcclCall& call) { return call.comm->name() + ", " + call.text(); }

[[noreturn]] void refuse(const NcclCall& call, const std::string& what) {
  throw NcclMisuse(ncclInvalidArgument, who(call) + ": " + what);
}

bool overlap(const NcclRange& a, const NcclRange& b) {
  return a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

// "" if the range is device memory.
std::string memory_fault(const NcclRange& range) {
  if (range.bytes == 0 || DeviceMemory::instance().contains(range.data, range.bytes)) return "";
  const char* what = DeviceMemory::page_locked().contains(range.data, range.bytes)
                         ? "is page-locked memory of the host"
                     : DeviceMemory::instance().find(range.data)
                         ? "is out of bounds: it is longer than the device allocation in which it begins"
                         : "is not device memory";
  return formatted("%s, %zu bytes at %p, %s", range.what, range.bytes, static_cast<const void*>(range.data),
                   what);
}

// NCCL's forms in place: the part that a rank sends, or receives, is where it belongs in the whole.
bool is_in_place(const NcclCall& call) {
  const auto own = static_cast<std::size_t>(call.comm->rank) * call.bytes();
  const auto *send = static_cast<const std::byte*>(call.send),
             *receive = static_cast<const std::byte*>(call.receive);
  switch (call.kind) {
    case NcclKind::all_gather: return send == receive + own;
    case NcclKind::reduce_scatter: return receive == send + own;
    case NcclKind::broadcast: return send == receive;
    default: return false;
  }
}
}  // namespace

void check_arguments(const NcclCall& call) {
  const bool has_root = !is_collective(call.kind) || call.kind == NcclKind::broadcast;
  if (has_root && (call.root < 0 || call.root >= call.comm->size))
    refuse(call, "rank " + std::to_string(call.root) + " is not one of the " +
                     std::to_string(call.comm->size) + " ranks");
  if (size_of(call.type) == 0) refuse(call, "data type " + std::to_string(call.type) + " does not exist");
  if (call.count > (SIZE_MAX >> 4) / static_cast<std::size_t>(call.comm->size))
    refuse(call, std::to_string(call.count) + " elements are too many");
  const std::vector<NcclRange> ranges = ranges_of(call);
  for (const NcclRange& range : ranges)
    if (const std::string fault = memory_fault(range); !fault.empty()) refuse(call, fault);
  if (ranges.size() == 2 && overlap(ranges[0], ranges[1]) && !is_in_place(call))
    refuse(call, "sendbuff overlaps recvbuff, and not as NCCL's form in place of this call");
}

void require_simulated(const NcclCall& call) {
  if (call.kind != NcclKind::reduce_scatter) return;
  if (call.operation != ncclSum)
    refuse(call, "operation " + std::to_string(call.operation) + " is not simulated: only ncclSum is");
  if (call.type != ncclFloat32 && call.type != ncclBfloat16 && call.type != ncclFloat64 &&
      call.type != ncclInt32 && call.type != ncclInt64)
    refuse(call, "the sum of data type " + std::to_string(call.type) + " is not simulated");
}

void require_device_memory(const NcclCall& call) {
  for (const NcclRange& range : ranges_of(call))
    if (const std::string fault = memory_fault(range); !fault.empty())
      throw std::runtime_error("simt: " + who(call) + ", when it runs: " + fault);
}

namespace {
void check_overlaps(const std::vector<NcclCall>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      for (const NcclRange& a : ranges_of(calls[i]))
        for (const NcclRange& b : ranges_of(calls[j]))
          if ((a.writes || b.writes) && overlap(a, b))
            refuse(calls[i], std::string(a.what) + " overlaps " + b.what + " of " + calls[j].text() +
                                 " in the same group");
}

// What a rank sends to itself it must receive in the same group.
void check_self(const std::vector<NcclCall>& calls) {
  std::int64_t open = 0;
  const NcclCall* last = nullptr;
  for (const NcclCall& call : calls) {
    if (is_collective(call.kind) || call.root != call.comm->rank) continue;
    open += call.kind == NcclKind::send ? 1 : -1;
    last = &call;
  }
  if (open != 0)
    throw NcclMisuse(ncclInvalidUsage, who(*last) +
                                           ": what a rank sends to itself, it must receive from itself in "
                                           "the same group");
}
}  // namespace

void check_group(const std::vector<NcclCall>& calls, const std::string& end) {
  for (const NcclCall& call : calls)
    if (call.stream && StreamQueues::instance().uses(call.stream) != call.stream_uses)
      throw NcclMisuse(ncclInvalidUsage,
                       who(call) + ": its stream was used for something else before " + end +
                           ": the call begins there, so that what belongs behind it must be enqueued later");
  check_overlaps(calls);
  check_self(calls);
}

// ------------------------------------------------------------------------------------------------- other
// ranks
namespace {
NcclRecord record_of(const NcclCall& call, std::uint64_t epoch, std::uint64_t group) {
  NcclRecord record;
  record.epoch = epoch;
  record.kind = call.kind;
  record.type = call.type;
  record.operation = call.operation;
  record.root = is_collective(call.kind) ? call.root : -1;
  record.count = call.count;
  record.group = group;
  const std::string place = place_of(call.where);
  record.place[place.copy(record.place, sizeof record.place - 1)] = 0;
  return record;
}

[[noreturn]] void refuse_difference(const NcclCall& call, int other, const std::string& what) {
  throw NcclMisuse(ncclInvalidUsage,
                   "the calls of the ranks differ: " + call.comm->board->name_of(call.comm->rank) + " and " +
                       call.comm->board->name_of(other) + " of the communicator of " + call.comm->made +
                       ": " + what,
                   true);
}

void compare(const NcclCall& call, const NcclRecord& own, int peer, const NcclRecord& other) {
  const auto differ = [&](const char* what, auto ours, auto theirs) {
    if (ours == theirs) return;
    const auto has = [&](const NcclRecord& record, auto value) {
      return record.text() + " has " + what + " " + std::to_string(value);
    };
    refuse_difference(call, peer,
                      has(own, ours) + ", " + has(other, theirs) + " at rank " + std::to_string(peer));
  };
  if (is_collective(own.kind) && own.kind != other.kind)
    refuse_difference(call, peer,
                      "collective " + std::to_string(call.sequence_number) + " is " + own.text() +
                          " here, and " + other.text() + " at rank " + std::to_string(peer));
  differ("count", own.count, other.count);
  differ("data type", static_cast<int>(own.type), static_cast<int>(other.type));
  differ("operation", static_cast<int>(own.operation), static_cast<int>(other.operation));
  differ("root", own.root, other.root);
  differ("grouped collectives:", own.group, other.group);
}

// The rank of a process in a communicator, or -1.
int rank_in(const ncclComm& comm, const ProcessIdentity& process) {
  for (int r = 0; r < comm.size; ++r)
    if (comm.board->process(r) == process) return r;
  return -1;
}

// Whether a peer has made a call of another sequence, which this rank has not made yet, in an earlier group
// than that which matches `call`.
void compare_order(const NcclCall& call, int peer, const ncclComm& elsewhere) {
  const NcclBoard &board = *call.comm->board, &other_board = *elsewhere.board;
  const int there = rank_in(elsewhere, board.process(peer));
  if (there < 0 || there == elsewhere.rank) return;
  for (const NcclSequence& sequence :
       {NcclSequence{}, NcclSequence{NcclKind::send, there}, NcclSequence{NcclKind::receive, there}}) {
    const std::uint64_t next = other_board.count(elsewhere.rank, sequence) + 1;
    const std::uint64_t published = other_board.published(there);
    const NcclRecord* ahead = other_board.find(there, counterpart(sequence, elsewhere.rank), next);
    if (!ahead) continue;
    const NcclSequence matching = counterpart(call.sequence(), call.comm->rank);
    const NcclRecord* theirs = board.find(peer, matching, call.sequence_number);
    const bool not_yet = board.count(peer, matching) < call.sequence_number;
    if (theirs ? theirs->epoch > ahead->epoch : not_yet && ahead->epoch <= published)
      refuse_difference(call, peer,
                        "unequal order: rank " + std::to_string(peer) + " makes " + ahead->text() +
                            (&elsewhere == call.comm ? "" : " on the communicator of " + elsewhere.made) +
                            " before what matches " + call.text() + ", this rank afterwards");
  }
}

std::uint64_t collectives_on(const ncclComm* comm, const std::vector<NcclCall>& calls) {
  return static_cast<std::uint64_t>(std::count_if(calls.begin(), calls.end(), [&](const NcclCall& call) {
    return call.comm == comm && is_collective(call.kind);
  }));
}
}  // namespace

void compare_with_others(std::vector<NcclCall>& calls) {
  const std::uint64_t epoch = NcclProcess::instance().next_epoch();
  const std::vector<ncclComm_t> living = NcclProcess::instance().living();
  for (NcclCall& call : calls) {
    NcclBoard& board = *call.comm->board;
    board.add(call.sequence(), record_of(call, epoch, collectives_on(call.comm, calls)));
    call.sequence_number = board.count(call.comm->rank, call.sequence());
  }
  for (const ncclComm_t comm : living) comm->board->publish(epoch);
  for (const NcclCall& call : calls) {
    const NcclBoard& board = *call.comm->board;
    for (const int peer : call.peers()) {
      const NcclRecord* other =
          board.find(peer, counterpart(call.sequence(), call.comm->rank), call.sequence_number);
      if (other) compare(call, record_of(call, epoch, collectives_on(call.comm, calls)), peer, *other);
      for (const ncclComm_t comm : living) compare_order(call, peer, *comm);
    }
  }
}

void await_others(const std::vector<NcclCall>& calls) {
  for (const NcclCall& call : calls)
    for (const int peer : call.peers()) {
      const NcclBoard& board = *call.comm->board;
      const NcclSequence matching = counterpart(call.sequence(), call.comm->rank);
      const auto has_come = [&] { return board.count(peer, matching) >= call.sequence_number; };
      while (!has_come()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        require_not_aborted(*call.comm, call.text());
        const auto lost = board.lost(peer, who(call) + " waited for it");
        if (!lost || has_come()) continue;
        NcclProcess::instance().fail(*call.comm, ncclRemoteError, lost->rank, lost->what());
        throw *lost;
      }
    }
}

}  // namespace goat::on_simt
