// What a benchmark measures time with.
#pragma once

#include <omp.h>

#include <chrono>
#include <ctime>

namespace goat {

using Clock = double (*)();  // seconds from some start

inline double wall_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// CPU time of all threads, divided by their number: on an idle machine the wall time of work that keeps every
// thread busy, and nearly the same on a busy one. Flatters what runs on one thread.
inline double processor_clock() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)) /
         omp_get_max_threads();
}

}  // namespace goat
