// How the simulated device runs its kernels. Tests set options(); the environment sets what they start from:
//   GOAT_SIMT_ORDER=ascending|descending|random  GOAT_SIMT_COPIES=early|late|random  GOAT_SIMT_SEED=n
//   GOAT_SIMT_THREADS=n  GOAT_SIMT_ARCHITECTURE=80|86|89|90|120  GOAT_SIMT_MULTIPROCESSORS=n
//   GOAT_SIMT_LEAKS=1
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace goat::on_simt {

// In which order blocks run, and the threads of a block between two barriers. A correct deterministic kernel
// gives the same bits in each.
enum class Order { ascending, descending, random };

// When asynchronous copies and wgmma take effect: as they are started, as they are waited for, or either,
// drawn at random.
enum class Copies { early, late, random };

struct Options {
  Order order = Order::ascending;
  Copies copies = Copies::late;
  std::uint64_t seed = 1;
  int threads = 0;  // of the host; 0: all that this process may use. The race checker uses one
  bool poison =
      true;  // new device memory, and the shared memory of every block, is filled with 0xFF: NaN, or -1
  bool strict = true;           // a barrier that some threads missed because they had returned is an error
  bool races = true;            // look for races; needs kernels compiled with -fsanitize=thread
  int architecture = 90;        // whose limit of shared memory holds: 80, 86, 89, 90 or 120
  int multiprocessors = 2;      // of a device that is opened from now on; kernels size their grids by it
  int grid_limit = 65535;       // blocks in y and in z
  bool leaks = false;           // say at exit what device memory was not released
  std::size_t stack_bytes = 0;  // of one thread; 0: 64 KiB, with AddressSanitizer 256 KiB. Read when a host
                                // thread runs its first kernel
};

// Of this process; every enqueue() reads them. Throws std::runtime_error if a variable of the environment
// holds something else than listed above.
Options& options();

// What the environment asks for, afresh.
Options environment_options();

// Shared memory that one block may have, in bytes. Throws std::invalid_argument for an architecture that is
// not listed.
std::size_t shared_memory_limit(int architecture);

// What has been simulated since the last reset.
struct Counters {
  std::uint64_t blocks = 0;
  std::uint64_t switches = 0;     // from thread to thread
  std::uint64_t collectives = 0;  // of a warp or warpgroup
  std::uint64_t barriers = 0;
  std::uint64_t races = 0;
  std::uint64_t matrix_reads = 0;              // 8x8 matrices fetched by ldmatrix
  std::uint64_t conflicting_matrix_reads = 0;  // of those, with two rows in the same banks
};
Counters counters();
void reset_counters();

struct DeviceMemoryUse {
  std::size_t allocations = 0, bytes = 0;
};
DeviceMemoryUse device_memory_use();

// Whether kernels of this program report their accesses to the race checker.
bool race_checking_available();

}  // namespace goat::on_simt
