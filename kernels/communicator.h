// Communicator: moves bytes between the ranks of a run. It adds nothing up, apart from reduce_scatter(): what
// is summed over ranks is gathered first and added by an operation (SumParts), so that the bits do not depend
// on how bytes travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/device.h"

namespace goat {

// A rank takes no part any more: its process has ended or is stopped, it failed, or it has left. what() names
// the rank and its process, where a library tells them; else its number is -1.
struct RankLost : std::runtime_error {
  RankLost(int lost, const std::string& what) : std::runtime_error(what), rank(lost) {}
  const int rank;
};

// All ranks make the same calls in the same order, each with the same sizes and the same root, one thread at
// a time. A call with 0 bytes is a call like any other.
//
// Device memory: a call reads and writes in the order of the device's stream: it sees what was enqueued
// before, and what is enqueued afterwards sees its results. The host may have to wait for the stream. Memory
// may begin at any address; with 0 bytes it may be nullptr. A call can be recorded (Device::capture) where
// can_capture() says so.
//
// Errors:
// * RankLost, at most the time limit after this rank began to wait for the lost one, and much earlier if its
//   process has ended.
// * std::logic_error, on all ranks, if they made different calls. It names two of them.
// * std::invalid_argument for memory that overlaps or a root that is not a rank, and whatever the device
//   throws. The other ranks then get RankLost with that message.
// What a call would have written is undefined after an error. The communicator cannot be used any more: every
// further call throws the same error.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;  // 0 .. size() - 1
  virtual int size() const = 0;

  // Part r of `send` goes to rank r, where it becomes part rank() of `receive`. Both hold size() parts of
  // `bytes` and do not overlap. (With one rank they may be the same memory.)
  virtual void all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) = 0;

  // `send`, of `bytes`, becomes part rank() of `receive` on all ranks. It does not overlap `receive`, or it
  // is that part of it already, and is not copied then.
  virtual void all_gather(Device& device, void* receive, const void* send, std::size_t bytes) = 0;

  // `memory` of all ranks becomes that of rank `root`.
  virtual void broadcast(Device& device, void* memory, std::size_t bytes, int root) = 0;

  // receive[i] = the sum over all ranks of element i of part rank() of their `send`, which holds size() parts
  // of `elements` numbers each, f32 or bf16. A library adds them, in an order of its own and in the dtype of
  // the numbers. They do not overlap. Throws std::logic_error where there is no such library.
  virtual void reduce_scatter(Device& device, void* receive, const void* send, std::size_t elements,
                              DType dtype);

  // The communicator of the ranks that give the same color, in the order of their keys (equal keys: of their
  // ranks). Returns when all ranks have come. No call of this communicator, and none of its numbers, is one
  // of the other. Throws std::logic_error where that is not possible.
  virtual std::unique_ptr<Communicator> split(int color, int key);

  virtual bool can_capture() const { return false; }

  // What any thread may ask at any time, without waiting: the number of this rank's calls whose work is
  // complete, and an error that shows beside the calls (empty: none). A call that is recorded counts as
  // complete; a replay counts for nothing.
  virtual std::uint64_t completed() const = 0;
  virtual std::string trouble() const { return {}; }
};

// What opens the communicator of one of several GPUs (kernels/open/open_communicator.h).
struct CommunicatorSetup {
  std::string id;  // the same on all ranks, of one of them
  int rank = 0, size = 1;
  bool sums = false;  // reduce_scatter() will be called
};

// The communicator of a run with one rank. It copies only from one memory to another.
std::unique_ptr<Communicator> single_rank();

// Rank `rank` of `size` that nothing connects: calls check their memory and move nothing. For planning what a
// rank would do.
std::unique_ptr<Communicator> unconnected_rank(int rank, int size);

// Throw std::invalid_argument if the memory of the call of one rank is not as stated above.
void check_all_to_all(const void* receive, const void* send, std::size_t bytes, int size);
void check_all_gather(const void* receive, const void* send, std::size_t bytes, int rank, int size);
void check_reduce_scatter(const void* receive, const void* send, std::size_t elements, DType dtype, int size);
void check_broadcast(const void* memory, std::size_t bytes, int root, int size);

}  // namespace goat
