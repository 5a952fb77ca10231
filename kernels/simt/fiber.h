// Fibers: stacks between which a host thread switches in a few nanoseconds. Each CUDA thread that waits
// has one fiber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) && !defined(GOAT_SIMT_UCONTEXT)
#define GOAT_SIMT_UCONTEXT
#endif
#if defined(GOAT_SIMT_UCONTEXT)
#include <ucontext.h>
#else
// Saves the callee-saved registers on the stack and the stack pointer in *save. Then sets
// the stack pointer to `load`, restores the registers that were saved there and continues there.
extern "C" void goat_simt_switch(void** save, void* load);
#endif

namespace goat::on_simt {

struct Fiber {
  void* stack_pointer = nullptr;  // saved while the fiber does not run
  char* stack = nullptr;          // lowest address
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // for AddressSanitizer
  Fiber* next_free = nullptr;
#if defined(GOAT_SIMT_UCONTEXT)
  ucontext_t context;
#endif
};

inline void switch_fiber(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(GOAT_SIMT_UCONTEXT)
  swapcontext(&from.context, &to.context);
#else
  goat_simt_switch(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// The approximate end of the caller's stack. Unlike __builtin_frame_address, this needs no frame.
[[gnu::always_inline]] inline char* stack_pointer() {
  char* end;
#if defined(__x86_64__)
  asm volatile("movq %%rsp, %0" : "=r"(end));
#else
  end = static_cast<char*>(__builtin_frame_address(0));
#endif
  return end;
}

// Must be the first call in a fiber's entry function.
inline void fiber_entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

// The stack with which this host thread was started, as a fiber.
Fiber host_stack();

// The fibers of one host thread. Each starts in `entry`.
class FiberPool {
 public:
  FiberPool(void (*entry)(), std::size_t stack_bytes);
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;
  ~FiberPool();

  Fiber* take() {
    Fiber* fiber = free_;
    if (!fiber) return add();
    free_ = fiber->next_free;
    return fiber;
  }
  void give_back(Fiber* fiber) {
    fiber->next_free = free_;
    free_ = fiber;
  }

  // Makes every fiber free, so that it starts again in `entry`. The contents of the stacks are lost:
  // no destructor runs.
  void restart_all();

  // Whether the lowest bytes of the stack were changed, which happens only if it overflows.
  static bool overflowed(const Fiber& fiber) {
    return *reinterpret_cast<const std::uint64_t*>(fiber.stack) != untouched;
  }
  static constexpr std::size_t reserve = 1024;  // bytes that must be free when a thread waits

 private:
  static constexpr std::uint64_t untouched = 0x5AFE57AC5AFE57ACull;

  Fiber* add();
  void place_stack(Fiber& fiber);
  void restart(Fiber& fiber, std::size_t index);

  struct Mapping {
    void* memory;
    std::size_t bytes;
  };
  void (*entry_)();
  std::size_t stack_bytes_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* free_ = nullptr;
  std::vector<Mapping> mappings_;
  char* slab_ = nullptr;  // the unused part of the last mapping
  std::size_t slab_bytes_ = 0;
};

}  // namespace goat::on_simt
