// Internal to the emulator: one Worker per host thread, which switches between CUDA threads. Only the
// emulator's own files include this header.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/simt/execution.h"
#include "kernels/simt/fiber.h"
#include "kernels/simt/instructions.h"
#include "kernels/simt/options.h"
#include "kernels/simt/shared_memory.h"

namespace goat::on_simt {

class RaceChecker;
class HopperUnits;

// One kernel that runs.
struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  KernelCall call{};
  Options options;
  std::uint32_t number = 0;  // counts the launches of this process
  std::uint64_t blocks = 0;
  std::atomic<std::uint64_t> next_block{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string report;  // the first failure, and the races
  bool failure_reported = false;
};

// A rendezvous of the lanes of a warp. Several with overlapping masks may be under way: a lane takes part in
// one after the other.
struct Rendezvous {
  std::uint32_t mask, arrived;
  Collective operation;
  int line;
};
struct Warp {
  std::uint32_t existing, ready, finished;  // one bit per lane
  std::uint32_t awaited;                    // lanes named by a rendezvous under way
  std::uint32_t meetings;                   // number under way (with `arrived` not 0)
  Rendezvous rendezvous[32];
  void* argument[32];
};

struct BlockBarrier {
  std::uint32_t arrived = 0;
  const char* file = nullptr;  // source place of the first thread to arrive
  int line = 0;
  int yes = 0;
  Votes result{};
};
struct NamedBarrier {
  std::uint32_t arrived = 0;
  int expected = 0;
  // Thread numbers. members: those that have arrived, whether they wait or not.
  std::vector<std::uint32_t> waiting, members;
};

// A cp.async of one thread.
struct AsyncCopy {
  void* shared;
  const void* global;
  int bytes, source_bytes;
  int group;
  bool done;
  const void* code;
};
struct CopyQueue {
  std::vector<AsyncCopy> copies;  // oldest first
  int open_group = 0;
};

// Thrown through the stack of a thread whose kernel has failed.
struct KernelFailed {};

struct Worker {
  Worker();
  ~Worker();
  void run(Launch& launch);  // runs blocks until none is left or one has failed

  Launch* launch = nullptr;
  Block block{};
  std::uint64_t block_number = 0;
  Fiber host;
  std::unique_ptr<FiberPool> fibers;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::uint32_t ready_warps = 0;  // one bit per warp
  std::uint32_t finished = 0;     // number of threads
  unsigned current_warp = 0;
  Order order = Order::ascending;
  std::uint64_t random_state = 1;
  bool block_failed = false;

  SharedMemory shared;
  BlockBarrier barrier;
  NamedBarrier named_barriers[16];
  std::vector<CopyQueue> copies;  // by thread
  std::unique_ptr<HopperUnits> hopper;
  std::unique_ptr<RaceChecker> race_checker;
  RaceChecker* races = nullptr;  // null while it is not used
  int outstanding = 0;           // threads at barriers, and unfinished asynchronous copies and products
  Counters counters;

  std::uint32_t random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return static_cast<std::uint32_t>(random_state >> 16);
  }
  bool copies_land_at_once() {
    const Copies when = launch->options.copies;
    return when == Copies::early || (when == Copies::random && (random() & 1));
  }

  Thread* next_ready() {
    if (!ready_warps) return nullptr;
    if (!warps[current_warp].ready || (order == Order::random && (random() & 7) == 0))
      current_warp = pick(ready_warps);
    Warp& warp = warps[current_warp];
    const unsigned lane = pick(warp.ready);
    // A ready warp has a ready lane.
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
    warp.ready &= ~(1u << lane);
    if (!warp.ready) ready_warps &= ~(1u << current_warp);
    return &threads[current_warp * 32 + lane];
  }
  void make_ready(const Thread& thread) {
    warps[thread.warp].ready |= 1u << thread.lane;
    ready_warps |= 1u << thread.warp;
  }
  void make_ready(unsigned warp, std::uint32_t lanes) {
    if (!lanes) return;
    warps[warp].ready |= lanes;
    ready_warps |= 1u << warp;
  }
  void make_all_ready();  // all threads that have not finished

  // Continues with `next`. The stack of `from` is continued later, or is free.
  void resume(Fiber& from, Thread& next) {
    if (!next.fiber) [[unlikely]]
      return begin(from, next);
    current_thread = &next;
    ++counters.switches;
    switch_fiber(from, *next.fiber);
  }
  // The current thread waits until another thread makes it ready. There are only tail calls, so that no
  // registers are saved until switch_fiber does it.
  void suspend() {
    Thread& self = *current_thread;
    if (stack_pointer() < self.fiber->stack + FiberPool::reserve) [[unlikely]]
      stack_overflow(self);
    if (!ready_warps) [[unlikely]]
      return suspend_for_late_copies();
    Thread& next = *next_ready();
    if (&next != &self) resume(*self.fiber, next);
  }
  void run_threads();  // the loop of every fiber

 private:
  unsigned pick(std::uint32_t set) {
    switch (order) {
      case Order::ascending: return static_cast<unsigned>(std::countr_zero(set));
      case Order::descending: return 31u - static_cast<unsigned>(std::countl_zero(set));
      default: {
        const int rotation = static_cast<int>(random() & 31);
        return static_cast<unsigned>(std::countr_zero(std::rotr(set, rotation)) + rotation) & 31u;
      }
    }
  }
  void begin(Fiber& from, Thread& next);
  void suspend_for_late_copies();
  Thread* after_late_copies();  // completes TMA loads until a thread can run; fails if none can
  [[noreturn]] void stack_overflow(const Thread& thread);
  [[noreturn]] void deadlock();
  void prepare(Launch& new_launch);
  void run_block(std::uint64_t linear);
  void finish(Thread& thread);
  void finish_with_loose_ends(Thread& thread);
};

// The worker of this host thread while it runs a kernel.
extern constinit thread_local Worker* current_worker;

// Adds to what counters() returns.
void add_counters(const Counters& counters);

// Records `text` as the failure of the running block. The caller must end the block.
void record_failure(Worker& worker, const std::string& text);

// The source place where lanes of the warp wait for this thread.
std::string place_that_awaits(const Worker& worker, const Thread& thread);

// Releases the threads at the block's barrier; called when all threads that have not returned are there.
void complete_barrier(Worker& worker);

// Whether the kernels report their accesses. race_hooks.cpp sets it.
extern constinit bool kernels_are_instrumented;

}  // namespace goat::on_simt
