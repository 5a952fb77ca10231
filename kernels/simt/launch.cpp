// enqueue(): refuses launches that a GPU would refuse, distributes the blocks to host threads, and turns
// failures into exceptions.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <stdexcept>
#include <thread>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/hopper.h"
#include "kernels/simt/races.h"
#include "kernels/simt/report.h"
#include "kernels/simt/scheduler.h"
#include "kernels/simt/streams.h"

namespace goat::on_simt {

namespace {

std::mutex counters_mutex;
Counters total;

// Runs blocks of a launch on this host thread until none is left.
void take_part(Launch& launch) {
  static thread_local std::unique_ptr<Worker> worker;
  try {
    if (!worker) worker = std::make_unique<Worker>();
    worker->run(launch);
    add_counters(std::exchange(worker->counters, {}));
  } catch (const std::exception& error) {  // not from the kernel, for example no memory for stacks
    worker.reset();
    current_worker = nullptr;
    current_block = nullptr;
    const std::lock_guard lock(launch.mutex);
    launch.failed = true;
    if (launch.report.empty()) launch.report = error.what();
  }
}

cpu_set_t allowed_processors() {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  sched_getaffinity(0, sizeof processors, &processors);
  return processors;
}

// Permanent host threads. Each is bound to a processor, because unbound threads were seen to share one
// for many launches.
class HostThreads {
 public:
  // Runs a launch on `count` host threads and waits for it. Only one launch runs at a time.
  void run(Launch& launch, int count) {
    const std::lock_guard one_launch(launching_);
    std::unique_lock lock(mutex_);
    for (; threads_ < count; ++threads_) std::thread([this, number = threads_] { serve(number); }).detach();
    launch_ = &launch;
    wanted_ = count;
    busy_ = threads_;
    ++generation_;
    wake_.notify_all();
    done_.wait(lock, [&] { return busy_ == 0; });
    launch_ = nullptr;
  }

 private:
  static void bind_to_processor(int number) {
    const cpu_set_t allowed = allowed_processors();
    const int count = CPU_COUNT(&allowed);
    if (count == 0) return;
    int skip = number % count;
    for (int processor = 0; processor < CPU_SETSIZE; ++processor)
      if (CPU_ISSET(processor, &allowed) && skip-- == 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(processor, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
      }
  }

  void serve(int number) {
    bind_to_processor(number);
    std::unique_lock lock(mutex_);
    for (std::uint64_t served = 0;;) {
      wake_.wait(lock, [&] { return generation_ != served && launch_; });
      served = generation_;
      Launch& launch = *launch_;
      if (number < wanted_) {
        lock.unlock();
        take_part(launch);
        lock.lock();
      }
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex launching_, mutex_;
  std::condition_variable wake_, done_;
  Launch* launch_ = nullptr;
  std::uint64_t generation_ = 0;
  int threads_ = 0, busy_ = 0, wanted_ = 0;
};

// Never destroyed: the threads end with the process. A forked child has none of its parent's threads, so that
// it starts new ones.
HostThreads& host_threads() {
  static std::mutex mutex;
  static HostThreads* threads = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (owner != getpid()) {
    threads = new HostThreads;
    owner = getpid();
  }
  return *threads;
}

int processors_of_this_process() {
  static const int count = [] {
    const cpu_set_t allowed = allowed_processors();
    return std::max(1, CPU_COUNT(&allowed));
  }();
  return count;
}

void check_limits(const Grid& grid, dim3 block, std::size_t shared_bytes, const void* kernel) {
  const auto refuse = [&](const std::string& reason) {
    throw std::runtime_error("simt: " + kernel_name(kernel) + " cannot start: " + reason);
  };
  if (current_worker) refuse("a kernel cannot enqueue a kernel");
  if (const std::string fault = launch_fault(grid, block); !fault.empty()) refuse(fault);
  const int architecture = options().architecture;
  const std::size_t limit = shared_memory_limit(architecture);
  if (shared_bytes > limit)
    refuse(formatted("%zu bytes of dynamic shared memory; the limit of sm_%d is %zu", shared_bytes,
                     architecture, limit));
}

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const KernelCall& call,
              const Options& settings) {
  static std::atomic<std::uint32_t> launches{0};
  Launch launch;
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared_bytes;
  launch.call = call;
  launch.options = settings;
  launch.number = ++launches;
  launch.blocks = std::uint64_t{grid.x} * grid.y * grid.z;

  const int wanted = settings.threads > 0 ? settings.threads : processors_of_this_process();
  const bool one_thread = wanted == 1 || launch.blocks == 1 || (kernels_are_instrumented && settings.races);
  if (one_thread)
    take_part(launch);
  else
    host_threads().run(
        launch, static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(wanted), launch.blocks)));

  const std::string overrun = DeviceMemory::instance().overrun();
  if (!launch.report.empty())
    throw std::runtime_error("simt: " + kernel_name(call.kernel) + ": " + launch.report);
  if (!overrun.empty())
    throw std::runtime_error("simt: " + kernel_name(call.kernel) +
                             ": out of bounds, something was written behind " + overrun);
}

}  // namespace

void add_counters(const Counters& counters) {
  const std::lock_guard lock(counters_mutex);
  total.blocks += counters.blocks;
  total.switches += counters.switches;
  total.collectives += counters.collectives;
  total.barriers += counters.barriers;
  total.races += counters.races;
  total.matrix_reads += counters.matrix_reads;
  total.conflicting_matrix_reads += counters.conflicting_matrix_reads;
  total.host_waits += counters.host_waits;
}

std::int64_t Grid::most_yz() { return options().grid_limit; }

Counters counters() {
  const std::lock_guard lock(counters_mutex);
  return total;
}
void reset_counters() {
  const std::lock_guard lock(counters_mutex);
  total = {};
}
bool race_checking_available() { return kernels_are_instrumented; }

void enqueue_grid(Stream stream, const Grid& grid, dim3 block, std::size_t shared_bytes,
                  const KernelCall& call) {
  check_limits(grid, block, shared_bytes, call.kernel);
  const dim3 size = checked_size(grid);
  if (runs_at_once(stream)) return run_grid(size, block, shared_bytes, call, options());
  append(stream, [=, settings = options(), arguments = call.keep(call.arguments)] {
    run_grid(size, block, shared_bytes, {call.kernel, call.run, call.keep, arguments.get()}, settings);
  });
}

}  // namespace goat::on_simt
