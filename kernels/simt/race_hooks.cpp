// The functions that g++ -fsanitize=thread calls at every load and store, implemented by the race checker
// instead of libtsan. Kernels are compiled with that flag; the emulator is not, and the program is not linked
// with it. The linker takes this file from the library if instrumented code needs it.
#include <cstddef>
#include <cstdint>

#include "kernels/simt/races.h"
#include "kernels/simt/scheduler.h"

namespace {

using goat::on_simt::current_thread;
using goat::on_simt::current_worker;

// True while the checker runs. The emulator and instrumented code share templates of the standard library,
// which may be instrumented. The checker must not check itself.
constinit thread_local bool busy = false;

inline void observe(const void* place, std::size_t bytes, bool write, bool aligned, const void* code) {
  if (!current_thread || busy || !current_worker || !current_worker->races) return;
  busy = true;
  current_worker->races->plain_access(*current_thread, place, bytes, write, aligned, code);
  busy = false;
}

}  // namespace

#define CODE __builtin_return_address(0)
#define ACCESSES(bytes)                                                                                  \
  void __tsan_read##bytes(void* place) { observe(place, bytes, false, true, CODE); }                     \
  void __tsan_write##bytes(void* place) { observe(place, bytes, true, true, CODE); }                     \
  void __tsan_unaligned_read##bytes(void* place) { observe(place, bytes, false, false, CODE); }          \
  void __tsan_unaligned_write##bytes(void* place) { observe(place, bytes, true, false, CODE); }          \
  void __tsan_volatile_read##bytes(void* place) { observe(place, bytes, false, true, CODE); }            \
  void __tsan_volatile_write##bytes(void* place) { observe(place, bytes, true, true, CODE); }            \
  void __tsan_unaligned_volatile_read##bytes(void* place) { observe(place, bytes, false, false, CODE); } \
  void __tsan_unaligned_volatile_write##bytes(void* place) { observe(place, bytes, true, false, CODE); }

// Atomics of instrumented code, including std::atomic on the host. Atomics of the
// device call observe_atomic().
#define ATOMICS(bits, T)                                                                                   \
  T __tsan_atomic##bits##_load(const volatile T* place, int) {                                             \
    return __atomic_load_n(place, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                        \
  void __tsan_atomic##bits##_store(volatile T* place, T value, int) {                                      \
    __atomic_store_n(place, value, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                        \
  T __tsan_atomic##bits##_exchange(volatile T* place, T value, int) {                                      \
    return __atomic_exchange_n(place, value, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                        \
  T __tsan_atomic##bits##_fetch_add(volatile T* place, T value, int) {                                     \
    return __atomic_fetch_add(place, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                        \
  T __tsan_atomic##bits##_fetch_sub(volatile T* place, T value, int) {                                     \
    return __atomic_fetch_sub(place, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                        \
  T __tsan_atomic##bits##_fetch_and(volatile T* place, T value, int) {                                     \
    return __atomic_fetch_and(place, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                        \
  T __tsan_atomic##bits##_fetch_or(volatile T* place, T value, int) {                                      \
    return __atomic_fetch_or(place, value, __ATOMIC_SEQ_CST);                                              \
  }                                                                                                        \
  T __tsan_atomic##bits##_fetch_xor(volatile T* place, T value, int) {                                     \
    return __atomic_fetch_xor(place, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                        \
  T __tsan_atomic##bits##_fetch_nand(volatile T* place, T value, int) {                                    \
    return __atomic_fetch_nand(place, value, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                        \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* place, T* expected, T value, int, int) {   \
    return __atomic_compare_exchange_n(place, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                        \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* place, T* expected, T value, int, int) {     \
    return __atomic_compare_exchange_n(place, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
  }

extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
ATOMICS(8, std::uint8_t)
ATOMICS(16, std::uint16_t)
ATOMICS(32, std::uint32_t)
ATOMICS(64, std::uint64_t)
void __tsan_read_range(void* place, std::size_t bytes) { observe(place, bytes, false, false, CODE); }
void __tsan_write_range(void* place, std::size_t bytes) { observe(place, bytes, true, false, CODE); }
void __tsan_init() { goat::on_simt::kernels_are_instrumented = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
}
