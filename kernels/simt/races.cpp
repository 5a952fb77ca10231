#include "kernels/simt/races.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/report.h"
#include "kernels/simt/scheduler.h"

namespace goat::on_simt {

namespace {

// Clock of an asynchronous write that no thread has waited for.
constexpr std::uint32_t pending = 0xFFFFFFFFu;
constexpr std::size_t most_reports = 16;

std::uint8_t touched_bytes(std::size_t cell, std::size_t begin, std::size_t end) {
  return static_cast<std::uint8_t>((2 * cell >= begin && 2 * cell < end ? 1 : 0) |
                                   (2 * cell + 1 >= begin && 2 * cell + 1 < end ? 2 : 0));
}

}  // namespace

// ---- clocks

void RaceChecker::start_launch() {
  threads_ = static_cast<std::uint32_t>(worker_.threads.size());
  found_ = false;
  reported_.clear();
  passed_on_.clear();
  cells_.resize(SharedMemory::capacity / granule);
  std::fill(cells_.begin(), cells_.end(), Cell{});
  cells_used_ = 0;
}

void RaceChecker::start_block() {
  block_ = static_cast<std::uint32_t>(worker_.block_number) + 1;
  own_.assign(threads_, 1);
  floor_.assign(threads_, 0);
  rows_.resize(std::size_t{threads_} * threads_);
  row_epoch_.assign(threads_, 0);
  epoch_ = 1;
  std::fill_n(cells_.begin(), cells_used_, Cell{});
  cells_used_ = 0;
  fenced_.assign(threads_, 0);
  any_fence_ = false;
  acquired_.clear();
}

std::uint32_t RaceChecker::known(std::uint32_t thread, std::uint32_t other) const {
  if (thread == other) return own_[thread];
  const std::uint32_t learnt =
      row_epoch_[thread] == epoch_ ? rows_[std::size_t{thread} * threads_ + other] : 0;
  return std::max(floor_[other], learnt);
}

std::uint32_t* RaceChecker::row(std::uint32_t thread) {
  std::uint32_t* values = &rows_[std::size_t{thread} * threads_];
  if (row_epoch_[thread] != epoch_) {
    std::copy(floor_.begin(), floor_.end(), values);
    row_epoch_[thread] = epoch_;
  }
  values[thread] = own_[thread];
  return values;
}

void RaceChecker::synchronize(const std::uint32_t* threads, std::size_t count) {
  Clock joined(threads_, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t* values = row(threads[i]);
    for (std::uint32_t other = 0; other < threads_; ++other)
      joined[other] = std::max(joined[other], values[other]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::copy(joined.begin(), joined.end(), row(threads[i]));
    ++own_[threads[i]];
  }
}

void RaceChecker::synchronize_block() {
  floor_ = own_;
  ++epoch_;
  for (std::uint32_t& clock : own_) ++clock;
}

void RaceChecker::release(std::uint32_t thread, Clock& clock) {
  clock.resize(threads_, 0);
  const std::uint32_t* values = row(thread);
  for (std::uint32_t other = 0; other < threads_; ++other)
    clock[other] = std::max(clock[other], values[other]);
  ++own_[thread];
}

void RaceChecker::acquire(std::uint32_t thread, const Clock& clock) {
  std::uint32_t* values = row(thread);
  for (std::uint32_t other = 0; other < clock.size(); ++other)
    values[other] = std::max(values[other], clock[other]);
}

// ---- fences and atomics: the last of many blocks may read what the other blocks wrote before

void RaceChecker::fence(std::uint32_t thread) {
  const std::uint32_t* values = row(thread);
  for (std::uint32_t other = 0; other < threads_; ++other)
    fenced_[other] = std::max(fenced_[other], values[other]);
  ++own_[thread];
  any_fence_ = true;
}

void RaceChecker::atomic_passes_on(const void* place) {
  if (!any_fence_) return;
  Passed& passed = passed_on_[place];
  for (const auto& [block, clock] : passed) acquired_.try_emplace(block, clock);
  passed[block_] = fenced_;
}

// ---- accesses

void RaceChecker::plain_access(const Thread& thread, const void* place, std::size_t bytes, bool write,
                               bool aligned, const void* code) {
  const bool misaligned = aligned && reinterpret_cast<std::uintptr_t>(place) % bytes != 0;
  if (misaligned && (worker_.shared.contains(place) || DeviceMemory::instance().contains(place, 1))) {
    report("misaligned access", place, thread, code, -1, nullptr);
    std::fprintf(stderr, "simt: misaligned access of %zu bytes: %s, at %s\n", bytes, describe(place).c_str(),
                 source_place(code).c_str());  // before the access, because it may end the program
  }
  access(thread, place, bytes, write ? Access::write : Access::read, code);
}

void RaceChecker::access(const Thread& thread, const void* place, std::size_t bytes, Access kind,
                         const void* code) {
  if (bytes == 0) return;
  if (worker_.shared.contains(place))
    shared_access(thread, place, bytes, kind, code);
  else
    global_access(thread, place, bytes, kind, code);
}

void RaceChecker::shared_access(const Thread& thread, const void* place, std::size_t bytes, Access kind,
                                const void* code) {
  if (!worker_.shared.valid(place, bytes)) return report("out of bounds", place, thread, code, -1, nullptr);
  const std::size_t begin = worker_.shared.offset(place), end = begin + bytes;
  cells_used_ = std::max(cells_used_, (end + granule - 1) / granule);
  for (std::size_t i = begin / granule; i * granule < end; ++i)
    check_cell(cells_[i], touched_bytes(i, begin, end), thread, kind, code,
               worker_.shared.region() + std::max(begin, i * granule), true);
}

void RaceChecker::global_access(const Thread& thread, const void* place, std::size_t bytes, Access kind,
                                const void* code) {
  Allocation* allocation = DeviceMemory::instance().find(place);
  if (!allocation) return;  // a variable of the thread or of the host
  if (!allocation->contains(place, bytes)) return report("out of bounds", place, thread, code, -1, nullptr);
  if (!allocation->shadow) {
    allocation->shadow = std::make_unique<GlobalShadow>();
    allocation->shadow->cells.resize((allocation->bytes + granule - 1) / granule);
  }
  const std::size_t begin = static_cast<std::size_t>(static_cast<const unsigned char*>(place) -
                                                     allocation->memory),
                    end = begin + bytes;
  for (std::size_t i = begin / granule; i * granule < end; ++i) {
    GlobalCell& cell = allocation->shadow->cells[i];
    const void* at = allocation->memory + std::max(begin, i * granule);
    enter_block(cell, thread, kind, code, at);
    check_cell(cell, touched_bytes(i, begin, end), thread, kind, code, at, false);
  }
}

// Checks an access against those of other blocks to the same bytes in this launch.
void RaceChecker::enter_block(GlobalCell& cell, const Thread& thread, Access kind, const void* code,
                              const void* place) {
  const std::uint32_t launch = worker_.launch->number;
  GlobalCell fresh;
  fresh.launch = launch;
  fresh.block = block_;
  if (cell.launch != launch) {
    cell = fresh;
    return;
  }
  if (cell.block == block_) {
    if (kind != Access::read && cell.other_block_reads)
      report("write to what another block reads", place, thread, code, cell.other_reader,
             cell.other_block_reads);
    return;
  }
  const auto passed = acquired_.find(cell.block);
  const auto ordered = [&](std::uint32_t other, std::uint32_t clock) {
    return passed != acquired_.end() && clock <= passed->second[other];
  };
  const bool both_atomic = kind == Access::atomic && cell.written_atomically;
  const bool written = cell.write_clock && !ordered(cell.writer, cell.write_clock);
  if (cell.read_clock && !ordered(cell.reader, cell.read_clock)) {
    fresh.other_block_reads = cell.read_code;
    fresh.other_reader = cell.reader;
  } else {
    fresh.other_block_reads = cell.other_block_reads;
    fresh.other_reader = cell.other_reader;
  }
  if (written && !both_atomic)
    report(kind == Access::read ? "read of another block's write" : "write over another block's write", place,
           thread, code, cell.writer, cell.write_code);
  if (fresh.other_block_reads && kind != Access::read && !both_atomic)
    report("write to what another block reads", place, thread, code, fresh.other_reader,
           fresh.other_block_reads);
  cell = fresh;
}

void RaceChecker::check_cell(Cell& cell, std::uint8_t bytes, const Thread& thread, Access kind,
                             const void* code, const void* place, bool shared) {
  if (kind == Access::read)
    check_read(cell, bytes, thread, code, place, shared);
  else
    check_write(cell, bytes, thread, kind, code, place);
}

void RaceChecker::check_read(Cell& cell, std::uint8_t bytes, const Thread& thread, const void* code,
                             const void* place, bool shared) {
  const std::uint32_t self = thread.number;
  if (shared && !cell.written) {
    report("read of uninitialised memory", place, thread, code, -1, nullptr);
    cell.written = true;
  }
  if (cell.write_bytes & bytes) {
    if (cell.write_clock == pending)
      report("read before the asynchronous copy was waited for", place, thread, code, cell.writer,
             cell.write_code);
    else if (cell.writer != self && cell.write_clock > known(self, cell.writer))
      report("race, read after write", place, thread, code, cell.writer, cell.write_code);
  }
  if (cell.reader != self) {
    cell.earlier_reader = cell.reader;
    cell.earlier_read_clock = cell.read_clock;
  }
  cell.reader = static_cast<std::uint16_t>(self);
  cell.read_clock = own_[self];
  cell.read_bytes = bytes;
  cell.read_code = code;
}

void RaceChecker::check_write(Cell& cell, std::uint8_t bytes, const Thread& thread, Access kind,
                              const void* code, const void* place) {
  const std::uint32_t self = thread.number;
  const bool both_atomic = kind == Access::atomic && cell.written_atomically;
  if ((cell.write_bytes & bytes) && !both_atomic) {
    if (cell.write_clock == pending)
      report("write before the asynchronous copy was waited for", place, thread, code, cell.writer,
             cell.write_code);
    else if (cell.writer != self && cell.write_clock > known(self, cell.writer))
      report("race, write after write", place, thread, code, cell.writer, cell.write_code);
  }
  if (cell.read_bytes & bytes) {
    if (cell.reader != self && cell.read_clock > known(self, cell.reader))
      report("race, write after read", place, thread, code, cell.reader, cell.read_code);
    else if (cell.earlier_read_clock && cell.earlier_reader != self &&
             cell.earlier_read_clock > known(self, cell.earlier_reader))
      report("race, write after read", place, thread, code, cell.earlier_reader, cell.read_code);
  }
  cell.writer = static_cast<std::uint16_t>(self);
  cell.write_clock = kind == Access::pending_write ? pending : own_[self];
  cell.write_bytes = bytes;
  cell.write_code = code;
  cell.written = true;
  cell.written_atomically = kind == Access::atomic;
}

// From now on the copy counts as a write of the thread that waited for it.
void RaceChecker::copy_landed(const Thread& thread, const void* shared, std::size_t bytes) {
  const std::size_t begin = worker_.shared.offset(shared);
  for (std::size_t i = begin / granule; i * granule < begin + bytes; ++i)
    if (cells_[i].write_clock == pending) cells_[i].write_clock = own_[thread.number];
}

void RaceChecker::tma_landed(std::uint32_t thread, std::uint32_t clock, const void* shared, std::size_t bytes,
                             const void* code, Clock& barrier) {
  const std::size_t begin = worker_.shared.offset(shared);
  for (std::size_t i = begin / granule; i * granule < begin + bytes; ++i) {
    cells_[i].writer = static_cast<std::uint16_t>(thread);
    cells_[i].write_clock = clock;
    cells_[i].write_bytes = 3;
    cells_[i].write_code = code;
    cells_[i].written = true;
  }
  barrier.resize(threads_, 0);
  barrier[thread] = std::max(barrier[thread], clock);
}

// ---- reports

std::string RaceChecker::describe(const void* place) const {
  if (worker_.shared.contains(place)) return worker_.shared.describe(place);
  const Allocation* allocation = DeviceMemory::instance().find(place);
  if (!allocation) return formatted("%p", place);
  return formatted("byte %zu of a device allocation of %zu bytes",
                   static_cast<std::size_t>(static_cast<const unsigned char*>(place) - allocation->memory),
                   allocation->bytes);
}

// Does not throw, because the compiler assumes that the hooks do not. Reports each pair of source places
// once. The launch fails after the block.
void RaceChecker::report(const char* what, const void* place, const Thread& thread, const void* code,
                         std::int64_t other, const void* other_code) {
  ++worker_.counters.races;
  found_ = true;
  if (reported_.size() >= most_reports || !reported_.insert({code, other_code, what}).second) return;
  const uint3 block = worker_.block.index;
  std::string text = formatted("block (%u,%u,%u): %s: ", block.x, block.y, block.z, what) + describe(place) +
                     formatted(", thread (%u,%u,%u) at ", thread.index.x, thread.index.y, thread.index.z) +
                     source_place(code);
  if (other_code) {
    const uint3 index = worker_.threads[static_cast<std::size_t>(other)].index;
    text += formatted(", thread (%u,%u,%u) at ", index.x, index.y, index.z) + source_place(other_code);
  }
  const std::lock_guard lock(worker_.launch->mutex);
  std::string& all = worker_.launch->report;
  all += (all.empty() ? "" : "\n") + text;
}

// ---- functions that kernels call

void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (current_worker && current_worker->races) current_worker->races->fence(current_thread->number);
}

void observe_atomic(const void* place, std::size_t bytes) {
  const void* code = __builtin_return_address(0);
  if (reinterpret_cast<std::uintptr_t>(place) % bytes != 0) [[unlikely]]
    misaligned_access(place, bytes, code);
  if (!current_worker || !current_worker->races) return;
  current_worker->races->atomic_passes_on(place);
  current_worker->races->access(*current_thread, place, bytes, Access::atomic, code);
}

}  // namespace goat::on_simt
