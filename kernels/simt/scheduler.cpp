// Runs the threads of one block after another, and ends a block in which no thread can continue.
#include "kernels/simt/scheduler.h"

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <utility>

#include "kernels/simt/hopper.h"
#include "kernels/simt/intrinsics.h"
#include "kernels/simt/races.h"
#include "kernels/simt/report.h"
#include "kernels/simt/sanitizers.h"

namespace goat::on_simt {

constinit thread_local Thread* current_thread = nullptr;
constinit thread_local Block* current_block = nullptr;
constinit thread_local Worker* current_worker = nullptr;
constinit bool kernels_are_instrumented = false;

namespace {

std::string mask_text(const Warp& warp, unsigned lane) {
  for (const Rendezvous& meeting : warp.rendezvous)
    if (meeting.arrived >> lane & 1) return formatted(" (mask %08x)", meeting.mask);
  return "";
}

std::string index_text(uint3 index) { return formatted("(%u,%u,%u)", index.x, index.y, index.z); }

void fiber_entry() {
  fiber_entered();
  current_worker->run_threads();
}

std::size_t default_stack_bytes() { return address_sanitizer ? 256 * 1024 : 64 * 1024; }

// The block that a launch runs at position `linear`. The random order is an affine map of the block numbers
// onto themselves; its factor is coprime to their number.
std::uint64_t block_in_order(std::uint64_t linear, std::uint64_t blocks, Order order, std::uint64_t seed) {
  if (order == Order::ascending) return linear;
  if (order == Order::descending) return blocks - 1 - linear;
  if (blocks > UINT32_MAX) return linear;  // the product below would overflow
  seed %= blocks;
  std::uint64_t factor = (seed * 2654435761u + 1) % blocks;
  while (std::gcd(factor, blocks) != 1) ++factor;
  return (linear * factor + seed) % blocks;
}

}  // namespace

void record_failure(Worker& worker, const std::string& text) {
  const std::lock_guard lock(worker.launch->mutex);
  Launch& launch = *worker.launch;
  if (launch.failure_reported) return;
  launch.failure_reported = true;
  const std::string races = launch.report.empty() ? "" : "\n" + launch.report;
  launch.report = "block " + index_text(worker.block.index) + ": " + text + races;
}

void fail(const std::string& text) {
  if (!current_worker) throw std::runtime_error("simt: " + text + " (outside of a kernel)");
  record_failure(*current_worker,
                 current_thread ? text + ", thread " + index_text(current_thread->index) : text);
  throw KernelFailed{};
}

void trap(const char* file, int line) { fail("__trap() at " + source_place(file, line)); }

void simulated_state_dynamic_shared(std::size_t bytes) {
  if (const std::size_t launched = current_worker->launch->shared_bytes; launched != bytes)
    fail(formatted("the kernel states %zu bytes of dynamic shared memory, its launch has %zu", bytes,
                   launched));
}

void misaligned_access(const void* place, std::size_t bytes, const void* code) {
  fail(formatted("misaligned access: %zu bytes at the address %p, at %s", bytes, place,
                 source_place(code).c_str()));
}

Worker::Worker() : host(host_stack()) {}
Worker::~Worker() = default;

void Worker::run(Launch& new_launch) {
  prepare(new_launch);
  std::uint64_t next;
  while (!launch->failed && (next = launch->next_block++) < launch->blocks) {
    run_block(block_in_order(next, launch->blocks, order, launch->options.seed));
    ++counters.blocks;
    if (block_failed || (races && races->found())) launch->failed = true;
  }
  current_worker = nullptr;
  current_block = nullptr;
  launch = nullptr;
}

void Worker::prepare(Launch& new_launch) {
  launch = &new_launch;
  current_worker = this;
  current_block = &block;
  block = {{}, launch->block, launch->grid, shared.region()};
  order = launch->options.order;
  if (!fibers) {
    const std::size_t stack_bytes = launch->options.stack_bytes;
    fibers = std::make_unique<FiberPool>(fiber_entry, stack_bytes ? stack_bytes : default_stack_bytes());
  }
  const std::uint32_t count = launch->block.x * launch->block.y * launch->block.z;
  threads.assign(count, Thread{});
  warps.assign((count + 31) / 32, Warp{});
  for (std::uint32_t i = 0; i < count; ++i) {
    const dim3 size = launch->block;
    threads[i].index = make_uint3(i % size.x, i / size.x % size.y, i / size.x / size.y);
    threads[i].number = i;
    threads[i].warp = static_cast<std::uint16_t>(i / 32);
    threads[i].lane = static_cast<std::uint16_t>(i % 32);
    warps[i / 32].existing |= 1u << i % 32;
  }
  barrier = {};
  for (NamedBarrier& named : named_barriers) named = {};
  copies.resize(count);
  for (CopyQueue& queue : copies) queue.copies.clear();
  outstanding = 0;
  hopper.reset();
  shared.start_launch(launch->shared_bytes, shared_memory_limit(launch->options.architecture),
                      launch->options.poison);
  races = nullptr;
  if (kernels_are_instrumented && launch->options.races) {
    if (!race_checker) race_checker = std::make_unique<RaceChecker>(*this);
    races = race_checker.get();
    races->start_launch();
  }
}

void Worker::run_block(std::uint64_t linear) {
  const dim3 grid = launch->grid;
  block_number = linear;
  block.index =
      make_uint3(static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                 static_cast<unsigned>(linear / grid.x / grid.y));
  random_state =
      (launch->options.seed * 0x9E3779B97F4A7C15ull) ^ (linear * 0xBF58476D1CE4E5B9ull) ^ 0x1234567;
  if (random_state == 0) random_state = 1;
  finished = 0;
  block_failed = false;
  for (Warp& warp : warps) {
    warp.ready = warp.existing;
    warp.finished = 0;
  }
  for (Thread& thread : threads) thread.finished = false;
  ready_warps = warps.size() == 32 ? ~0u : (1u << warps.size()) - 1;
  current_warp = pick(ready_warps);
  hopper.reset();
  shared.start_block();
  if (races) races->start_block();
  resume(host, *next_ready());
  current_thread = nullptr;
  if (!block_failed) {
    const std::string overrun = shared.overrun();
    const std::string forgotten = hopper ? hopper->forgotten() : "";
    if (!overrun.empty())
      record_failure(*this, "shared memory: out of bounds, something was written behind " + overrun);
    if (!forgotten.empty()) record_failure(*this, forgotten);
    block_failed = !overrun.empty() || !forgotten.empty();
  } else {
    fibers->restart_all();
  }
}

// The loop of a fiber: runs threads until none is left for this fiber and another fiber must continue.
// Threads that never wait run in a plain loop on one stack.
void Worker::run_threads() {
  Fiber* const self = current_thread->fiber;
  for (;;) {
    try {
      for (;;) {
        launch->call.run(launch->call.arguments);
        finish(*current_thread);
        Thread* next = next_ready();
        if (!next) {
          if (finished == threads.size()) break;
          next = after_late_copies();
        }
        if (next->fiber) {
          fibers->give_back(self);
          resume(*self, *next);
        } else {
          next->fiber = self;
          current_thread = next;
        }
      }
      fibers->give_back(self);
    } catch (const KernelFailed&) {
      block_failed = true;
    } catch (const std::exception& error) {
      record_failure(*this, std::string("the kernel threw an exception: ") + error.what());
      block_failed = true;
    } catch (...) {
      record_failure(*this, "the kernel threw an exception");
      block_failed = true;
    }
    switch_fiber(*self, host);  // returns here in a later block
  }
}

inline void Worker::finish(Thread& thread) {
  Warp& warp = warps[thread.warp];
  const std::uint32_t lane = 1u << thread.lane;
  thread.finished = true;
  warp.finished |= lane;
  ++finished;
  if (FiberPool::overflowed(*thread.fiber)) stack_overflow(thread);
  if (outstanding || (warp.awaited & lane)) [[unlikely]]
    finish_with_loose_ends(thread);
  thread.fiber = nullptr;
}

void Worker::finish_with_loose_ends(Thread& thread) {
  if (warps[thread.warp].awaited >> thread.lane & 1)
    fail("warp divergence: a thread returned while lanes of its warp wait for it in the collective at " +
         place_that_awaits(*this, thread));
  if (barrier.arrived) {
    if (launch->options.strict)
      fail(formatted("barrier divergence: a thread returned while %u threads wait at the barrier %s",
                     barrier.arrived, source_place(barrier.file, barrier.line).c_str()));
    if (barrier.arrived == threads.size() - finished) complete_barrier(*this);
  }
  CopyQueue& queue = copies[thread.number];
  if (!queue.copies.empty())
    fail("a thread returned with an asynchronous copy under way that was never waited for, started at " +
         source_place(queue.copies[0].code));
  if (hopper) hopper->check_return(thread);
}

void Worker::begin(Fiber& from, Thread& next) {
  next.fiber = fibers->take();
  resume(from, next);
}

void Worker::suspend_for_late_copies() {
  Thread& self = *current_thread;
  Thread& next = *after_late_copies();
  if (&next != &self) resume(*self.fiber, next);
}

Thread* Worker::after_late_copies() {
  Thread* next = nullptr;
  while (!next && hopper && hopper->land_one()) next = next_ready();
  if (!next) deadlock();
  return next;
}

void Worker::stack_overflow(const Thread& thread) {
  const std::string place =
      thread.finished ? std::string("it returned") : "it waits at " + source_place(thread.code);
  fail(formatted("stack overflow: a thread has more than %zu bytes of local variables; found when ",
                 thread.fiber->stack_bytes) +
       place);
}

void Worker::deadlock() {
  struct Group {
    unsigned count = 0;
    uint3 first{};
  };
  std::map<std::string, Group> groups;
  bool in_collectives = false;
  for (const Thread& thread : threads) {
    std::string state = "have returned";
    if (!thread.finished) switch (thread.waiting) {
        case Waiting::at_barrier: state = "wait at the barrier " + source_place(thread.code); break;
        case Waiting::in_collective:
          state = "wait in the warp collective at " + source_place(thread.code) +
                  mask_text(warps[thread.warp], thread.lane);
          break;
        case Waiting::for_mbarrier: state = "wait for the mbarrier at " + source_place(thread.code); break;
        case Waiting::nowhere: state = "do not wait"; break;
      }
    in_collectives |= !thread.finished && thread.waiting == Waiting::in_collective;
    Group& group = groups[state];
    if (group.count++ == 0) group.first = thread.index;
  }
  std::string text;
  for (const auto& [state, group] : groups)
    text += formatted("%s %u threads (the first is %s) ", text.empty() ? "" : ";", group.count,
                      index_text(group.first).c_str()) +
            state;
  current_thread = nullptr;
  fail((in_collectives ? "deadlock, warp divergence:" : "deadlock:") + text);
}

void Worker::make_all_ready() {
  ready_warps = 0;
  for (std::size_t i = 0; i < warps.size(); ++i) {
    warps[i].ready = warps[i].existing & ~warps[i].finished;
    if (warps[i].ready) ready_warps |= 1u << i;
  }
}

}  // namespace goat::on_simt
