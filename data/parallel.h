// Work on numbered items by several threads, for work that mostly waits for storage.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace goat {

// Calls work(i) once for each i of [0, count), from several threads if there are many. If calls throw, the
// error of the smallest such i is thrown again, whatever the threads' timing; larger ones may be left out.
template <class Work>
void for_each_in_parallel(std::size_t count, const Work& work) {
  constexpr std::size_t most_threads = 16, items_a_thread = 32;
  std::atomic<std::size_t> next = 0, failed = count;  // failed: the smallest i that failed
  std::exception_ptr failure;
  std::mutex mutex;
  // Items are taken in order. Therefore each one before a failed one has been taken, and is not left out.
  const auto take_items = [&] {
    for (std::size_t i = next++; i < failed; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i > failed) continue;
        failed = i;
        failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 1; t < std::min(most_threads, count / items_a_thread + 1); ++t)
      threads.emplace_back(take_items);
    take_items();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace goat
