// What the parts of the simulated NCCL share: communicators, calls, errors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/simt/nccl.h"
#include "kernels/simt/nccl_board.h"
#include "kernels/simt/streams.h"

namespace goat::on_simt {

// The call returns `result`. A lasting error is one of all ranks: later calls return it too.
struct NcclMisuse : std::runtime_error {
  NcclMisuse(ncclResult_t code, const std::string& text, bool is_lasting = false)
      : std::runtime_error(text), result(code), lasting(is_lasting) {}
  const ncclResult_t result;
  const bool lasting;
};

// Never freed, so that a call with a communicator that was destroyed is noticed.
struct ncclComm {
  std::shared_ptr<NcclBoard> board;
  int rank = 0, size = 1;
  int first_rank = 0;  // in the communicator from which it was split in the end
  bool blocking = true;
  std::string made;          // "ncclCommInitRankConfig (communicator.cu:12)"
  std::uint64_t splits = 0;  // made from this one
  Stream latest_stream = nullptr;
  EventState latest;  // after its latest transfer

  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<int> polls{0};   // times that ncclCommGetAsyncError must still be asked
  std::atomic<int> thread{0};  // that is in a call, or has a group open
  std::atomic<bool> ended{false};

  // Guarded by NcclProcess::mutex:
  std::string ended_by;  // the call after which no other may follow
  std::string failure;   // the text of `error`

  std::string name() const { return "rank " + std::to_string(rank) + " of " + std::to_string(size); }
};

struct NcclCall {
  NcclKind kind = NcclKind::send;
  const void* send = nullptr;
  void* receive = nullptr;
  std::uint64_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t operation = ncclSum;
  int root = 0;  // or peer; -1 where there is none
  ncclComm_t comm = nullptr;
  Stream stream = nullptr;
  Where where{};

  std::uint64_t number = 0;       // in its process, from 1
  std::uint64_t stream_uses = 0;  // when it was made
  std::uint64_t sequence_number = 0;

  std::string text() const;  // "ncclSend (communicator.cu:12)"
  std::uint64_t bytes() const;
  NcclSequence sequence() const { return {kind, is_collective(kind) ? -1 : root}; }
  std::vector<int> peers() const;  // the other ranks that make a call to match this one
};

std::size_t size_of(ncclDataType_t type);  // in bytes
std::string place_of(const Where& where);

// Memory that a call reads or writes between its entry and its end.
struct NcclRange {
  const std::byte* data;
  std::size_t bytes;
  bool writes;
  const char* what;  // "sendbuff"
};
std::vector<NcclRange> ranges_of(const NcclCall& call);

// ---- nccl_checks.cpp. They throw NcclMisuse.

void check_arguments(const NcclCall& call);
void check_group(const std::vector<NcclCall>& calls, const std::string& end);
// Tells the other ranks of the calls of a group, and compares with what they have called. Sets
// sequence_number. Of two ranks that differ at least the later one notices.
void compare_with_others(std::vector<NcclCall>& calls);
void require_simulated(const NcclCall& call);
// Returns when the others have made the calls.
void await_others(const std::vector<NcclCall>& calls);
void require_device_memory(const NcclCall& call);  // std::runtime_error

// ---- the communicators of this process

class NcclProcess {
 public:
  static NcclProcess& instance();

  ncclComm_t add(std::unique_ptr<ncclComm> comm);
  std::vector<ncclComm_t> living();
  bool is_known(const ncclComm* comm);
  bool use_id(std::uint64_t digits);  // false if it was used before
  std::uint64_t next_call() { return ++calls_; }
  std::uint64_t next_epoch() { return ++epoch_; }

  void note_error(const std::string& text);
  std::string last_error();
  // The communicator has failed because of rank `lost`; and so have all others of this process, because of
  // this rank. The first error counts.
  void fail(ncclComm& comm, ncclResult_t result, int lost, const std::string& text);
  // Only this one, and the other ranks are not told.
  void fail_alone(ncclComm& comm, ncclResult_t result, const std::string& text);
  std::string failure_of(const ncclComm& comm);
  void end(ncclComm& comm, const std::string& by);
  std::string end_of(const ncclComm& comm);

  void open_group(const std::string& by);  // "" when it is closed
  void report_leaks();                     // at exit

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ncclComm>> comms_;
  std::set<std::uint64_t> ids_;
  std::atomic<std::uint64_t> calls_{0}, epoch_{0};
  std::string last_error_, open_group_;
};

// Throws std::runtime_error if the communicator was aborted.
void require_not_aborted(const ncclComm& comm, const std::string& where);

}  // namespace goat::on_simt
