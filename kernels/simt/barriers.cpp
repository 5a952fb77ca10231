// Barriers of the block: __syncthreads and its votes, and the named barriers of PTX.
#include <algorithm>

#include "kernels/simt/races.h"
#include "kernels/simt/report.h"
#include "kernels/simt/scheduler.h"

namespace goat::on_simt {

void complete_barrier(Worker& worker) {
  BlockBarrier& barrier = worker.barrier;
  barrier.result = {barrier.yes, static_cast<int>(barrier.arrived)};
  worker.outstanding -= static_cast<int>(barrier.arrived);
  barrier.arrived = 0;
  barrier.yes = 0;
  ++worker.counters.barriers;
  if (worker.races) worker.races->synchronize_block();
  worker.make_all_ready();
}

static void check_barrier(Worker& worker, const char* file, int line) {
  const BlockBarrier& barrier = worker.barrier;
  if (barrier.arrived && (barrier.line != line || barrier.file != file))
    fail(formatted(
        "barrier divergence: a thread is at the barrier %s while %u threads wait at the barrier %s",
        source_place(file, line).c_str(), barrier.arrived, source_place(barrier.file, barrier.line).c_str()));
  if (worker.finished && worker.launch->options.strict)
    fail(formatted("barrier divergence: %u threads have returned and miss the barrier %s", worker.finished,
                   source_place(file, line).c_str()));
}

Votes block_barrier(bool vote, const char* file, int line) {
  Worker& worker = *current_worker;
  Thread& self = *current_thread;
  BlockBarrier& barrier = worker.barrier;
  self.code = __builtin_return_address(0);
  if (worker.warps[self.warp].awaited >> self.lane & 1) [[unlikely]]
    fail("warp divergence: a thread is at the barrier " + source_place(file, line) +
         " while lanes of its warp wait for it in the collective at " + place_that_awaits(worker, self));
  if (barrier.arrived == 0 || barrier.line != line || barrier.file != file) {
    check_barrier(worker, file, line);
    barrier.file = file;
    barrier.line = line;
  }
  barrier.yes += vote;
  ++barrier.arrived;
  ++worker.outstanding;
  if (barrier.arrived < worker.threads.size() - worker.finished) {
    self.waiting = Waiting::at_barrier;
    worker.suspend();
    return barrier.result;
  }
  complete_barrier(worker);
  const Votes result = barrier.result;
  if (worker.order == Order::ascending) {  // this thread continues without a switch
    Warp& warp = worker.warps[self.warp];
    warp.ready &= ~(1u << self.lane);
    if (!warp.ready) worker.ready_warps &= ~(1u << self.warp);
  } else {
    worker.suspend();
  }
  return result;
}

// ---- named barriers

static NamedBarrier& named_barrier(Worker& worker, int id, int threads, const void* code) {
  if (id < 1 || id > 15)
    fail(formatted("named barrier %d: 1 to 15 are allowed, at ", id) + source_place(code));
  if (threads <= 0 || threads % 32 != 0 || threads > static_cast<int>(worker.warps.size()) * 32)
    fail(formatted("named barrier %d for %d threads: a multiple of 32 within the block is needed, at ", id,
                   threads) +
         source_place(code));
  NamedBarrier& barrier = worker.named_barriers[id];
  if (barrier.arrived == 0) barrier.expected = threads;
  if (barrier.expected != threads)
    fail(formatted("named barrier %d: one thread names %d threads and another %d, at ", id, barrier.expected,
                   threads) +
         source_place(code));
  return barrier;
}

// Records the arrival of the current thread. Returns true if it was the last.
static bool arrive(Worker& worker, NamedBarrier& barrier) {
  barrier.members.push_back(current_thread->number);
  if (static_cast<int>(++barrier.arrived) < barrier.expected) return false;
  ++worker.counters.barriers;
  if (worker.races) worker.races->synchronize(barrier.members.data(), barrier.members.size());
  for (const std::uint32_t number : barrier.waiting) worker.make_ready(worker.threads[number]);
  barrier.arrived = 0;
  barrier.waiting.clear();
  barrier.members.clear();
  return true;
}

void simulated_named_barrier(int id, int threads) {
  Worker& worker = *current_worker;
  Thread& self = *current_thread;
  self.code = __builtin_return_address(0);
  NamedBarrier& barrier = named_barrier(worker, id, threads, self.code);
  if (arrive(worker, barrier)) return;
  barrier.waiting.push_back(self.number);
  self.waiting = Waiting::at_barrier;
  worker.suspend();
}

void simulated_named_barrier_arrive(int id, int threads) {
  Worker& worker = *current_worker;
  arrive(worker, named_barrier(worker, id, threads, __builtin_return_address(0)));
}

}  // namespace goat::on_simt
