// The memory that the ranks of a simulated NCCL communicator share: what each has called, by which the others
// compare, the mailboxes through which bytes travel, and which rank has failed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/process_identity.h"
#include "kernels/shared_exchange.h"
#include "kernels/shared_segment.h"
#include "kernels/simt/nccl.h"

namespace goat::on_simt {

enum class NcclKind : std::int32_t {
  send,
  receive,
  all_to_all,
  all_gather,
  broadcast,
  reduce_scatter,
  split
};
const char* name_of(NcclKind kind);  // "ncclSend"
inline bool is_collective(NcclKind kind) { return kind != NcclKind::send && kind != NcclKind::receive; }

// What a rank tells the others of a call.
struct NcclRecord {
  std::uint64_t epoch = 0;  // number of its group, in its process
  NcclKind kind = NcclKind::send;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t operation = ncclSum;
  std::int32_t root = 0;
  std::uint64_t count = 0;
  std::uint64_t group = 1;  // number of collectives of the communicator in the group
  char place[64] = "";      // source line

  std::string text() const;  // "ncclSend (communicator.cu:12)"
};

// Calls of a rank that must match those of another one after the other: all its collectives, what it sends to
// one rank, what it receives from one rank.
struct NcclSequence {
  NcclKind kind = NcclKind::all_gather;
  int peer = -1;  // of a send or receive
};
// The sequence of the other rank, `peer`, that must match this one of rank `own`.
NcclSequence counterpart(const NcclSequence& sequence, int own);

// Bytes on their way from a rank to another, one part at a time.
struct alignas(64) NcclMailbox {
  std::atomic<std::uint32_t> full;
  std::uint32_t bytes;  // of this part
  std::uint64_t total;  // of the whole
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};

class NcclBoard {
 public:
  // Removes the names in /dev/shm of a board that has not come about.
  static void remove_names(std::uint64_t digits) noexcept;

  // Returns when all ranks have come. `digits` is the same for all ranks, and no other communicator's. Throws
  // what SharedExchange does.
  NcclBoard(std::uint64_t digits, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(size_); }
  std::uint64_t digits() const { return digits_; }
  SharedExchange& exchange() { return *exchange_; }
  ProcessIdentity process(int rank) const { return place(rank).process; }
  std::string name_of(int rank) const;  // "rank 1 (process 1234)"

  // ---- calls, counted from 1
  void add(const NcclSequence& sequence, const NcclRecord& record);
  void publish(std::uint64_t epoch);  // all calls up to this group have been added, to all communicators
  std::uint64_t published(int rank) const;
  std::uint64_t count(int rank, const NcclSequence& sequence) const;
  // Null if there is none yet, or if it was long ago.
  const NcclRecord* find(int rank, const NcclSequence& sequence, std::uint64_t number) const;

  // ---- bytes
  NcclMailbox& mailbox(bool collective, int from, int to) const;
  std::size_t mailbox_bytes() const { return mailbox_bytes_; }

  // ---- ranks that are no longer there
  void leave();
  // This rank has failed, because of rank `lost`, maybe itself.
  void fail(int lost, const std::string& reason);
  // What has become of a rank that has ended, failed or left. `waiting` says who waits where.
  std::optional<RankLost> lost(int rank, const std::string& waiting) const;
  // Ends what other ranks wait for in exchange().
  void leave_exchange() { exchange_.reset(); }

 private:
  enum class Presence : std::uint32_t { present, left, failed };
  struct alignas(64) Place {  // of one rank
    ProcessIdentity process;
    std::atomic<std::uint64_t> published;
    std::atomic<Presence> presence;
    std::int32_t lost;
    char reason[1024];
  };
  static constexpr std::uint64_t kept = 256;  // calls of a sequence
  struct Log {
    std::atomic<std::uint64_t> count;
    NcclRecord records[kept];
  };

  std::size_t bytes() const;
  Place& place(int rank) const;
  Log& log(int rank, const NcclSequence& sequence) const;

  const std::uint64_t digits_;
  const int rank_;
  const std::size_t size_, mailbox_bytes_;
  std::optional<SharedSegment> segment_;
  std::unique_ptr<SharedExchange> exchange_;
};

}  // namespace goat::on_simt
