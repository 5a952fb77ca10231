// Informs AddressSanitizer about the emulator's memory. Does nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace goat::on_simt {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool address_sanitizer = true;
inline void poison(const void* memory, std::size_t bytes) { __asan_poison_memory_region(memory, bytes); }
inline void unpoison(const void* memory, std::size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
constexpr bool address_sanitizer = false;
inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
#endif

}  // namespace goat::on_simt
