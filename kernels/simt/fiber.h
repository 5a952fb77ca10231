// Fibers: stacks of their own, among which a host thread switches in a few nanoseconds. One CUDA thread that
// waits holds one fiber.
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
// Saves the callee-saved registers on the stack and the stack pointer in *save; goes on where `load` was
// saved.
extern "C" void goat_simt_switch(void** save, void* load);
#endif

namespace goat::on_simt {

struct Fiber {
  void* stack_pointer = nullptr;  // while it does not run
  char* stack = nullptr;          // lowest address
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
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

// About where the stack of the caller ends. Unlike __builtin_frame_address it needs no frame.
[[gnu::always_inline]] inline char* stack_pointer() {
  char* end;
#if defined(__x86_64__)
  asm volatile("movq %%rsp, %0" : "=r"(end));
#else
  end = static_cast<char*>(__builtin_frame_address(0));
#endif
  return end;
}

// The first thing that a fiber's entry function calls.
inline void fiber_entered() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

// The stack that this host thread was started with, as a fiber.
Fiber host_stack();

// The fibers of one host thread. All of them start in `entry`.
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

  // Every fiber is free and starts anew; what stood on the stacks is forgotten, no destructor runs.
  void restart_all();

  // The lowest bytes of a stack are never reached unless it overflows.
  static bool overflowed(const Fiber& fiber) {
    return *reinterpret_cast<const std::uint64_t*>(fiber.stack) != untouched;
  }
  static constexpr std::size_t reserve = 1024;  // what must remain free where a thread waits

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
  char* slab_ = nullptr;  // what is left of the last mapping
  std::size_t slab_bytes_ = 0;
};

}  // namespace goat::on_simt
