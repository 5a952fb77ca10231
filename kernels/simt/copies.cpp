// cp.async: copies that a thread starts, commits in groups and waits for.
#include <cstring>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/races.h"
#include "kernels/simt/report.h"
#include "kernels/simt/scheduler.h"

namespace goat::on_simt {

namespace {

void land(AsyncCopy& copy) {
  std::memcpy(copy.shared, copy.global, static_cast<std::size_t>(copy.source_bytes));
  std::memset(static_cast<char*>(copy.shared) + copy.source_bytes, 0,
              static_cast<std::size_t>(copy.bytes - copy.source_bytes));
  copy.done = true;
}

void check(Worker& worker, const AsyncCopy& copy) {
  const auto bytes = static_cast<std::size_t>(copy.bytes);
  const auto misaligned = [&](const void* place) {
    return reinterpret_cast<std::uintptr_t>(place) % bytes != 0;
  };
  const auto refuse = [&](const std::string& what) {
    fail("cp.async: " + what + ", at " + source_place(copy.code));
  };
  if (!worker.shared.valid(copy.shared, bytes)) [[unlikely]]
    refuse(formatted("out of bounds, %zu bytes are written at ", bytes) +
           (worker.shared.contains(copy.shared) ? worker.shared.describe(copy.shared)
                                                : "an address that is not shared memory"));
  if (misaligned(copy.shared) || misaligned(copy.global)) [[unlikely]]
    refuse(formatted("misaligned access, %zu bytes from %p to ", bytes, copy.global) +
           worker.shared.describe(copy.shared));
  if (copy.source_bytes > 0 && !DeviceMemory::instance().contains(
                                   copy.global, static_cast<std::size_t>(copy.source_bytes))) [[unlikely]]
    refuse(formatted("out of bounds, %d bytes are read at %p, which is not in device memory",
                     copy.source_bytes, copy.global));
}

}  // namespace

void simulated_copy_async(void* shared, const void* global, int bytes, int source_bytes) {
  Worker& worker = *current_worker;
  CopyQueue& queue = worker.copies[current_thread->number];
  AsyncCopy copy{shared, global, bytes, source_bytes, queue.open_group, false, __builtin_return_address(0)};
  check(worker, copy);
  if (worker.races) {
    worker.races->access(*current_thread, global, static_cast<std::size_t>(source_bytes), Access::read,
                         copy.code);
    worker.races->access(*current_thread, shared, static_cast<std::size_t>(bytes), Access::pending_write,
                         copy.code);
  }
  if (worker.copies_land_at_once()) land(copy);
  queue.copies.push_back(copy);
  ++worker.outstanding;
}

void simulated_copy_async_commit() { ++current_worker->copies[current_thread->number].open_group; }

void simulated_copy_async_wait(int pending) {
  Worker& worker = *current_worker;
  CopyQueue& queue = worker.copies[current_thread->number];
  std::size_t waited = 0;
  for (; waited < queue.copies.size() && queue.copies[waited].group < queue.open_group - pending; ++waited) {
    AsyncCopy& copy = queue.copies[waited];
    if (!copy.done) land(copy);
    if (worker.races)
      worker.races->copy_landed(*current_thread, copy.shared, static_cast<std::size_t>(copy.bytes));
  }
  queue.copies.erase(queue.copies.begin(), queue.copies.begin() + static_cast<std::ptrdiff_t>(waited));
  worker.outstanding -= static_cast<int>(waited);
}

}  // namespace goat::on_simt
