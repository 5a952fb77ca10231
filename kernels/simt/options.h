// Options of the simulated device. Tests set options(). Environment variables set the initial values:
//   GOAT_SIMT_ORDER=ascending|descending|random  GOAT_SIMT_COPIES=early|late|random  GOAT_SIMT_SEED=n
//   GOAT_SIMT_STREAMS=at_once|late|random|urgent_first  GOAT_SIMT_THREADS=n
//   GOAT_SIMT_ARCHITECTURE=80|86|89|90|120  GOAT_SIMT_MULTIPROCESSORS=n  GOAT_SIMT_LEAKS=1
//   GOAT_SIMT_STREAM_RACES=0|1
//   GOAT_SIMT_NCCL_DELAY=milliseconds  GOAT_SIMT_NCCL_BLOCK=never|random|always
//   GOAT_SIMT_NCCL_FAIL=rank:call:error|async|silence|death
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace goat::on_simt {

// The order of the blocks, and of the threads of a block between two barriers. A correct deterministic kernel
// gives the same bits in every order.
enum class Order { ascending, descending, random };

// When asynchronous copies and wgmma take effect: when they start, when a thread waits for them, or at random
// one of the two.
enum class Copies { early, late, random };

// When the work of a stream (kernels, copies, matrix products) runs. A program that waits where it must gives
// the same bits for each.
//   at_once  in the call that enqueues it.
//   late     when the host waits for it (runtime::synchronize, wait, download, release, destroy_stream), and
//            then no more than the wait needs.
//   random   in any order that streams and events allow: some of it at each call that enqueues or waits.
//   urgent_first  work of streams of runtime::Priority::urgent as soon as the events that it follows are
//            complete; that of other streams as with late.
enum class Streams { at_once, late, random, urgent_first };

// Whether a call of NCCL returns before the other ranks have made theirs. The real one may do either.
enum class NcclBlock { never, random, always };

// What befalls a call of NCCL:
//   error    it returns an error.
//   async    it returns success and never completes; ncclCommGetAsyncError tells of an error.
//   silence  it never completes.
//   death    the process is killed in the middle of the transfer.
enum class NcclFault { none, error, async, silence, death };
struct NcclFailure {
  int rank = 0;            // in the communicator that was made by ncclCommInitRankConfig
  std::uint64_t call = 1;  // the first transfer of the process has number 1, whatever its communicator
  NcclFault fault = NcclFault::none;
};

struct Options {
  Order order = Order::ascending;
  Copies copies = Copies::late;
  Streams streams = Streams::at_once;
  std::uint64_t seed = 1;
  // Number of host threads. 0: all processors that this process may use. The race checker uses one.
  int threads = 0;
  // Fills new device memory, and the shared memory of every block, with 0xFF (NaN, or -1).
  bool poison = true;
  bool strict = true;  // refuse a barrier that some threads miss because they have returned
  bool races = true;   // search for races; needs kernels compiled with -fsanitize=thread
  // Refuse operations and copies of a stream that access what those of another stream access, where one of
  // the two writes and neither waits for the other: found in every order of work.
  bool stream_races = true;
  int architecture = 90;    // sets the limit of shared memory: 80, 86, 89, 90 or 120
  int multiprocessors = 2;  // of devices opened from now on; kernels choose their grids by it
  int grid_limit = 65535;   // largest number of blocks in y and in z
  bool leaks = false;       // report at exit device memory and communicators that were not released
  // Calls of NCCL (nccl.h). Each rank delays the transfer of each call by a random time up to nccl_delay, in
  // milliseconds.
  int nccl_delay = 0;
  NcclBlock nccl_block = NcclBlock::never;
  NcclFailure nccl_failure;
  // Stack of one thread. 0: 64 KiB, with AddressSanitizer 256 KiB. Read when a host thread runs
  // its first kernel.
  std::size_t stack_bytes = 0;
};

// The options of this process. Every enqueue() reads them; they hold for the kernel whenever it runs. Throws
// std::runtime_error if an environment variable has a value that is not listed above.
Options& options();

// Reads the environment variables again.
Options environment_options();

// Largest size of the shared memory of one block, in bytes. Throws std::invalid_argument for an architecture
// that is not listed.
std::size_t shared_memory_limit(int architecture);

// Numbers of simulated events since the last reset.
struct Counters {
  std::uint64_t blocks = 0;
  std::uint64_t switches = 0;     // switches between threads
  std::uint64_t collectives = 0;  // by warps or warpgroups
  std::uint64_t barriers = 0;
  std::uint64_t races = 0;
  std::uint64_t matrix_reads = 0;              // 8x8 matrices read by ldmatrix
  std::uint64_t conflicting_matrix_reads = 0;  // those with two rows in the same banks
  std::uint64_t host_waits = 0;                // calls of runtime::synchronize, wait and download
};
Counters counters();
void reset_counters();

struct DeviceMemoryUse {
  std::size_t allocations = 0, bytes = 0;
};
DeviceMemoryUse device_memory_use();

// Whether the kernels of this program report their accesses to the race checker.
bool race_checking_available();

}  // namespace goat::on_simt
