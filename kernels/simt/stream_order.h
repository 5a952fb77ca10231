// Which work of several streams is behind which (happens-before), and what it reads and writes: finds two
// accesses of one place that may run in either order.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/memory_access.h"

namespace goat::on_simt {

// By stream, numbered from 1: the time up to which the stream's work is complete before something begins.
using Clock = std::map<int, std::uint64_t>;

class StreamOrder {
 public:
  void add(int stream);
  // Its accesses stay until all are behind them: the end of a stream orders nothing.
  void remove(int stream);

  // What is behind an event that the stream records now. The stream's later work is of a later time.
  Clock record(int stream);
  void follow(int stream, const Clock& event);  // the stream's later work
  void host_follows(const Clock& event);        // all work that is enqueued later, on any stream

  std::uint64_t time(int stream) const;
  // Whether the stream's later work is behind that of `other` of this time.
  bool is_behind(int stream, int other, std::uint64_t time) const;

  // Work that is enqueued now accesses memory. Throws std::runtime_error, and notes nothing, if another
  // stream has accessed a part of it, one of the two writes, and none is behind the other.
  void note(int stream, std::span<const MemoryAccess> accesses);
  void forget(const void* memory, std::size_t bytes);  // what lies within
  void forget_what_all_are_behind();

  // What has been noted and not been forgotten.
  std::vector<MemoryAccess> accesses() const;

 private:
  struct Noted {
    int stream;
    std::uint64_t time;
    MemoryAccess access;
  };
  bool all_are_behind(const Noted& noted) const;
  void forget_streams();

  std::map<int, Clock> clocks_;  // of the streams that exist; clocks_[s][s] is the time of s
  Clock host_;
  std::vector<Noted> history_;
};

}  // namespace goat::on_simt
