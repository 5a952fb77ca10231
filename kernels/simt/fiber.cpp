#include "kernels/simt/fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "kernels/simt/sanitizers.h"

#if !defined(GOAT_SIMT_UCONTEXT)
asm(R"(
.text
.globl goat_simt_switch
.type goat_simt_switch,@function
goat_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size goat_simt_switch,.-goat_simt_switch
)");
#endif

namespace goat::on_simt {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;

void* map(std::size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

}  // namespace

Fiber host_stack() {
  Fiber fiber;
  pthread_attr_t attributes;
  void* lowest = nullptr;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &lowest, &fiber.stack_bytes);
    pthread_attr_destroy(&attributes);
  }
  fiber.stack = static_cast<char*>(lowest);
  return fiber;
}

FiberPool::FiberPool(void (*entry)(), std::size_t stack_bytes)
    : entry_(entry), stack_bytes_((std::max<std::size_t>(stack_bytes, 4 * page) + page - 1) / page * page) {}

FiberPool::~FiberPool() {
  for (const auto& fiber : fibers_) unpoison(fiber->stack, fiber->stack_bytes);
  for (const Mapping& mapping : mappings_) munmap(mapping.memory, mapping.bytes);
}

Fiber* FiberPool::add() {
  auto fiber = std::make_unique<Fiber>();
  place_stack(*fiber);
  *reinterpret_cast<std::uint64_t*>(fiber->stack) = untouched;
  restart(*fiber, fibers_.size());
  fibers_.push_back(std::move(fiber));
  return fibers_.back().get();
}

// With AddressSanitizer every stack has a protected page below it. Without it, stacks are cut from huge
// pages: stacks that are 64 KiB apart on small pages would overload the translation look-aside buffer, and a
// protected page would split a huge page.
void FiberPool::place_stack(Fiber& fiber) {
  if (address_sanitizer) {
    char* memory = static_cast<char*>(map(stack_bytes_ + page));
    mappings_.push_back({memory, stack_bytes_ + page});
    mprotect(memory, page, PROT_NONE);
    fiber.stack = memory + page;
  } else {
    if (slab_bytes_ < stack_bytes_) {
      const std::size_t bytes = (stack_bytes_ + huge_page - 1) / huge_page * huge_page;
      char* memory = static_cast<char*>(map(bytes + huge_page));
      mappings_.push_back({memory, bytes + huge_page});
      // There is mapped memory below the first stack too. Therefore an overflow does not crash; overflowed()
      // finds it later.
      slab_ = memory + (huge_page - reinterpret_cast<std::uintptr_t>(memory) % huge_page);
      slab_bytes_ = bytes;
      madvise(slab_, bytes, MADV_HUGEPAGE);
    }
    fiber.stack = slab_;
    slab_ += stack_bytes_;
    slab_bytes_ -= stack_bytes_;
  }
  fiber.stack_bytes = stack_bytes_;
}

void FiberPool::restart(Fiber& fiber, std::size_t index) {
  unpoison(fiber.stack, fiber.stack_bytes);
  *reinterpret_cast<std::uint64_t*>(fiber.stack) = untouched;
  fiber.fake_stack = nullptr;
  // All stacks have the same alignment. Without different offsets, their active frames would compete for the
  // same sets of the first-level cache.
  const std::size_t offset = index * 320 % 4096 & ~std::size_t{15};
#if defined(GOAT_SIMT_UCONTEXT)
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.stack_bytes - offset;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry_, 0);
#else
  void** top = reinterpret_cast<void**>(fiber.stack + fiber.stack_bytes - offset);
  *--top = nullptr;  // return address of `entry`, which never returns
  *--top = reinterpret_cast<void*>(entry_);
  for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
  fiber.stack_pointer = top;
#endif
}

void FiberPool::restart_all() {
  free_ = nullptr;
  for (std::size_t i = fibers_.size(); i-- > 0;) {
    restart(*fibers_[i], i);
    give_back(fibers_[i].get());
  }
}

}  // namespace goat::on_simt
