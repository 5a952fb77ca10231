// Finds pairs of accesses without an order between them. Every load and store of instrumented kernels calls
// this checker (race_hooks.cpp). Barriers, __syncwarp, asynchronous copies, and fences with atomics order
// accesses; vector clocks record this order. Blocks run one after another on one host thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernels/simt/execution.h"
#include "kernels/simt/intrinsics.h"

namespace goat::on_simt {

struct Worker;

enum class Access : std::uint8_t {
  read,
  write,
  atomic,
  pending_write,  // of an asynchronous copy that no thread has waited for
};

// The known accesses to two neighbouring bytes: the last write and two reads. write_bytes and read_bytes say
// which of the two bytes were accessed (one bit each).
struct Cell {
  std::uint32_t write_clock = 0, read_clock = 0, earlier_read_clock = 0;
  std::uint16_t writer = 0, reader = 0, earlier_reader = 0;  // thread numbers
  std::uint8_t write_bytes = 0, read_bytes = 0;
  bool written = false, written_atomically = false;
  const void* write_code = nullptr;
  const void* read_code = nullptr;
};
struct GlobalCell : Cell {
  std::uint32_t launch = 0, block = 0;      // the launch and block of the accesses above
  const void* other_block_reads = nullptr;  // where an earlier block reads these bytes
  std::uint16_t other_reader = 0;
};
class GlobalShadow {
 public:
  std::vector<GlobalCell> cells;
};

class RaceChecker {
 public:
  explicit RaceChecker(Worker& worker) : worker_(worker) {}
  void start_launch();
  void start_block();
  bool found() const { return found_; }

  void access(const Thread& thread, const void* place, std::size_t bytes, Access kind, const void* code);
  // Records a plain load or store of kernel code. `aligned`: the compiler assumed that the address is a
  // multiple of the size.
  void plain_access(const Thread& thread, const void* place, std::size_t bytes, bool write, bool aligned,
                    const void* code);
  void copy_landed(const Thread& thread, const void* shared, std::size_t bytes);

  // Orders everything that these threads did before everything that they will do.
  void synchronize(const std::uint32_t* threads, std::size_t count);
  void synchronize_block();
  // release adds what a thread knows to `clock`. acquire adds `clock` to what a thread knows.
  using Clock = std::vector<std::uint32_t>;
  void release(std::uint32_t thread, Clock& clock);
  void acquire(std::uint32_t thread, const Clock& clock);

  // A write to shared memory by the TMA unit, ordered by the mbarrier with the given clock.
  std::uint32_t tick(std::uint32_t thread) { return own_[thread]++; }
  void tma_landed(std::uint32_t thread, std::uint32_t clock, const void* shared, std::size_t bytes,
                  const void* code, Clock& barrier);

  // __threadfence, and an atomic that may pass the fenced accesses on to a later block.
  void fence(std::uint32_t thread);
  void atomic_passes_on(const void* place);

 private:
  static constexpr std::size_t granule = 2;  // bytes per cell

  // The latest clock tick of `other` that `thread` knows.
  std::uint32_t known(std::uint32_t thread, std::uint32_t other) const;
  std::uint32_t* row(std::uint32_t thread);
  void check_cell(Cell& cell, std::uint8_t bytes, const Thread& thread, Access kind, const void* code,
                  const void* place, bool shared);
  void check_read(Cell& cell, std::uint8_t bytes, const Thread& thread, const void* code, const void* place,
                  bool shared);
  void check_write(Cell& cell, std::uint8_t bytes, const Thread& thread, Access kind, const void* code,
                   const void* place);
  void enter_block(GlobalCell& cell, const Thread& thread, Access kind, const void* code, const void* place);
  void shared_access(const Thread& thread, const void* place, std::size_t bytes, Access kind,
                     const void* code);
  void global_access(const Thread& thread, const void* place, std::size_t bytes, Access kind,
                     const void* code);
  std::string describe(const void* place) const;
  void report(const char* what, const void* place, const Thread& thread, const void* code, std::int64_t other,
              const void* other_code);

  Worker& worker_;
  std::uint32_t threads_ = 0;
  std::uint32_t block_ = 0;  // number + 1 of the running block
  bool found_ = false;

  // Thread t knows the clock own_[t] of itself. Of another thread u it knows the larger of floor_[u] (the
  // last barrier of the block) and its row in rows_, if the row was written since that barrier.
  std::vector<std::uint32_t> own_, floor_, rows_;
  std::vector<std::uint32_t> row_epoch_;
  std::uint32_t epoch_ = 1;

  std::vector<Cell> cells_;  // one per granule of shared memory
  std::size_t cells_used_ = 0;
  std::set<std::tuple<const void*, const void*, const char*>> reported_;

  // For each thread, the clock up to which its accesses have been fenced in this block.
  std::vector<std::uint32_t> fenced_;
  bool any_fence_ = false;
  using Passed = std::unordered_map<std::uint32_t, Clock>;  // by block
  std::unordered_map<const void*, Passed> passed_on_;       // by atomic
  Passed acquired_;                                         // what this block has learnt through atomics
};

}  // namespace goat::on_simt
