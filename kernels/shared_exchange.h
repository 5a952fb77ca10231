// SharedExchange: the communicator of ranks that run on one host, through memory that they share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/process_identity.h"
#include "kernels/shared_segment.h"

namespace goat {

// What all ranks are told alike, except `rank`.
struct SharedExchangeSetup {
  std::string name;         // of the segment: no other run on this host may use it at the same time
  std::uint64_t nonce = 0;  // of the run: a segment that an earlier run has left is known by it
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds start_limit{300'000};  // until all ranks have attached
  std::chrono::milliseconds time_limit{600'000};   // of each wait for the other ranks
  std::size_t slot_bytes = std::size_t{1} << 20;   // of each of a rank's two slots; rank 0's counts
};

// Every rank has two slots in the segment. A call goes in rounds: each rank copies to its slot of the round
// what the others need next, posts the number of the round, waits until all have posted it, and copies from
// their slots. Two slots are enough: who has posted round n has read those of round n - 1, and nobody
// writes to them again (in round n + 1) before all have posted n. With its first round a rank states which
// call it makes; all compare.
//
// A wait is for a futex. Every 10 ms it looks after the processes of those that have not posted. Time during
// which this process was itself stopped does not count towards the time limits.
//
// Works with every device: what is sent is downloaded to the slot and what is received uploaded from it. The
// name is gone when the constructor returns; the memory goes with the last process.
class SharedExchange final : public Communicator {
 public:
  // Returns when all ranks have attached. Throws std::runtime_error if they do not in time, if two have the
  // same rank, or if the segment is not to be had; RankLost if the process of one that has attached ends.
  explicit SharedExchange(const SharedExchangeSetup& setup);
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;
  ~SharedExchange() override;  // a rank that waits for this one then gets RankLost

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_to_all(Device& device, void* receive, const void* send, std::size_t bytes) override;
  void all_gather(Device& device, void* receive, const void* send, std::size_t bytes) override;
  void broadcast(Device& device, void* memory, std::size_t bytes, int root) override;
  std::uint64_t completed() const override { return completed_; }

  // Bytes of the host: those of all ranks, which may be of different lengths.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own);
  // Returns when all ranks have made this call. It does not wait for their devices.
  void barrier();

 private:
  enum class Kind : std::uint32_t { all_to_all, all_gather, broadcast, gather, barrier };
  struct Call {
    Kind kind = Kind::barrier;
    std::int32_t root = 0;
    std::uint64_t bytes = 0;
  };
  enum class Presence : std::uint32_t { absent, attached, left, failed };
  struct Header;
  struct Place;  // of one rank
  class Patience;
  // Copies `count` bytes from the `first` on of what this rank sends to its slot.
  using Fill = std::function<void(std::size_t first, std::size_t count)>;
  // Copies such bytes of what rank `from` sends from its slot.
  using Drain = std::function<void(int from, std::size_t first, std::size_t count)>;

  static SharedSegment attach(const SharedExchangeSetup& setup);
  static SharedSegment create(const SharedExchangeSetup& setup);
  static bool is_of_this_run(const SharedSegment& segment, const SharedExchangeSetup& setup);
  void take_place();
  void await_all(const SharedExchangeSetup& setup);

  void guarded(const std::function<void()>& work);
  void run(const Call& call, std::size_t chunk, const Fill& fill, const Drain& drain);
  void next_round(const Call& call);
  std::uint64_t compare(const Call& call);
  bool has_posted(int rank) const;
  void look_after_missing(const Call& call);
  [[noreturn]] void give_up_waiting(const Call& call);
  std::string name_of(int rank) const;
  std::string place_of(const Call& call) const;
  static std::string text_of(const Call& call);

  Header& header() const;
  Place& place(int rank) const;
  std::byte* slot(int rank) const;  // of this round
  // Of the parts that rank `from` has in its slot, that for rank `to`.
  std::size_t part_index(int from, int to) const {
    return static_cast<std::size_t>((to - from + size_ - 1) % size_);
  }

  const int rank_, size_;
  const std::chrono::milliseconds time_limit_;
  SharedSegment segment_;
  std::uint32_t round_;
  std::uint64_t calls_ = 0;
  std::atomic<std::uint64_t> completed_ = 0;
  std::vector<std::uint64_t> bytes_;  // of each rank, in this call
  std::exception_ptr failure_;
};

}  // namespace goat
