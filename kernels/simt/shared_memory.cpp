#include "kernels/simt/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/simt/report.h"
#include "kernels/simt/sanitizers.h"
#include "kernels/simt/scheduler.h"

namespace goat::on_simt {

SharedMemory::SharedMemory()
    : region_(static_cast<unsigned char*>(mmap(nullptr, capacity, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (region_ == MAP_FAILED) throw std::bad_alloc();
  poison(region_, capacity);
}

SharedMemory::~SharedMemory() {
  unpoison(region_, capacity);
  munmap(region_, capacity);
}

void SharedMemory::start_launch(std::size_t dynamic_bytes, std::size_t limit, bool poisoned) {
  poison(region_, capacity);
  unpoison(region_, dynamic_bytes);
  variables_.clear();
  dynamic_bytes_ = end_ = dynamic_bytes;
  static_bytes_ = 0;
  limit_ = limit;
  poisoned_ = poisoned;
  guard_end();
}

void SharedMemory::start_block() {
  if (!poisoned_) return;
  std::memset(region_, 0xFF, dynamic_bytes_);
  for (const Placed& placed : variables_) std::memset(region_ + placed.offset, 0xFF, placed.variable->bytes);
}

void* SharedMemory::find(const SharedVariable& variable) {
  for (const Placed& placed : variables_)
    if (placed.variable == &variable) return region_ + placed.offset;
  constexpr std::size_t static_limit = 48 * 1024;
  const std::size_t alignment = std::max<std::size_t>(variable.alignment, 16);
  const std::size_t offset = (end_ + guard + alignment - 1) / alignment * alignment;
  static_bytes_ = (static_bytes_ + alignment - 1) / alignment * alignment + variable.bytes;
  const std::string place =
      std::string(variable.name) + " (" + source_place(variable.file, variable.line) + ")";
  if (static_bytes_ > static_limit)
    fail(formatted(
        "shared memory: %zu bytes of static variables up to %s, the limit is %zu; use dynamic_shared",
        static_bytes_, place.c_str(), static_limit));
  if (static_bytes_ + dynamic_bytes_ > limit_)
    fail(formatted(
        "shared memory: %zu bytes of static variables up to %s and %zu dynamic bytes exceed the limit of %zu",
        static_bytes_, place.c_str(), dynamic_bytes_, limit_));
  end_ = offset + variable.bytes;
  unpoison(region_ + offset, variable.bytes);
  if (poisoned_) std::memset(region_ + offset, 0xFF, variable.bytes);
  guard_end();
  variables_.push_back({&variable, offset});
  return region_ + offset;
}

bool SharedMemory::in_variable(const void* place, std::size_t bytes) const {
  const std::size_t start = offset(place);
  return std::any_of(variables_.begin(), variables_.end(), [&](const Placed& placed) {
    return start >= placed.offset && start + bytes <= placed.offset + placed.variable->bytes;
  });
}

std::string SharedMemory::describe(const void* place) const {
  const std::size_t start = offset(place);
  if (start < dynamic_bytes_) return formatted("dynamic shared memory[+%zu]", start);
  const Placed* nearest = nullptr;
  for (const Placed& placed : variables_)
    if (placed.offset <= start) nearest = &placed;
  if (nearest) return formatted("%s[+%zu]", nearest->variable->name, start - nearest->offset);
  return formatted("dynamic shared memory[+%zu], which has %zu bytes", start, dynamic_bytes_);
}

void SharedMemory::guard_end() {
  if (!address_sanitizer) std::memset(region_ + end_, guard_byte, guard);
}

bool SharedMemory::guard_intact(std::size_t end) const {
  return std::all_of(region_ + end, region_ + end + guard,
                     [](unsigned char byte) { return byte == guard_byte; });
}

std::string SharedMemory::overrun() const {
  if (address_sanitizer) return "";
  if (!guard_intact(dynamic_bytes_))
    return formatted("the %zu bytes of dynamic shared memory", dynamic_bytes_);
  for (const Placed& placed : variables_)
    if (!guard_intact(placed.offset + placed.variable->bytes))
      return formatted("%s, %zu bytes, declared at %s", placed.variable->name, placed.variable->bytes,
                       source_place(placed.variable->file, placed.variable->line).c_str());
  return "";
}

void* shared_variable(const SharedVariable& variable) { return current_worker->shared.variable(variable); }

std::uint32_t shared_address(const void* place) {
  return static_cast<std::uint32_t>(current_worker->shared.offset(place));
}

}  // namespace goat::on_simt
