// Threads, blocks, barriers, shared memory and kernel launches, as kernel sources see them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>

#include "kernels/cuda/grid.h"

namespace goat::on_simt {

class StreamQueue;
struct EventState;
struct RecordedGraph;
// Work on the null stream runs at once, whatever Options::streams is (streams.h). It has no events and
// records nothing.
using Stream = StreamQueue*;
using Event = EventState*;
using Graph = RecordedGraph*;

struct Fiber;

enum class Waiting : std::uint8_t { nowhere, at_barrier, in_collective, for_mbarrier };

// One CUDA thread.
struct Thread {
  uint3 index;
  std::uint32_t number;  // index in its block, x fastest
  std::uint16_t warp, lane;
  Waiting waiting;
  bool finished;
  Fiber* fiber;      // null before the thread begins and after it returns
  const void* code;  // where the thread waits: address in the kernel
  const char* file;  // source file and line, if a barrier or mbarrier gives them
  int line;
};

struct Block {
  uint3 index;
  dim3 size, grid;
  void* dynamic_shared;
};

// The thread and block that this host thread executes. Null outside of kernels.
extern constinit thread_local Thread* current_thread;
extern constinit thread_local Block* current_block;

// Ends the kernel. enqueue() then throws std::runtime_error with this text, the block and the thread.
[[noreturn]] void fail(const std::string& text);
[[noreturn]] void trap(const char* file, int line);

// ---- barriers of the block. The source place of the call is part of a barrier's identity.

struct Votes {
  int yes, all;
};
Votes block_barrier(bool vote, const char* file, int line);

__attribute__((always_inline)) inline void __syncthreads(const char* file = __builtin_FILE(),
                                                         int line = __builtin_LINE()) {
  block_barrier(false, file, line);
}
__attribute__((always_inline)) inline int __syncthreads_count(int predicate,
                                                              const char* file = __builtin_FILE(),
                                                              int line = __builtin_LINE()) {
  return block_barrier(predicate != 0, file, line).yes;
}
__attribute__((always_inline)) inline int __syncthreads_or(int predicate, const char* file = __builtin_FILE(),
                                                           int line = __builtin_LINE()) {
  return block_barrier(predicate != 0, file, line).yes != 0;
}
__attribute__((always_inline)) inline int __syncthreads_and(int predicate,
                                                            const char* file = __builtin_FILE(),
                                                            int line = __builtin_LINE()) {
  const Votes votes = block_barrier(predicate != 0, file, line);
  return votes.yes == votes.all;
}

// Orders this thread's earlier writes before its later ones, as seen by threads of other blocks.
void __threadfence();
inline void __threadfence_block() {}

// ---- memory

template <class T>
using SharedType = T;  // lets GOAT_SHARED take array types

struct SharedVariable {
  const char* name;
  const char* file;
  int line;
  std::size_t bytes, alignment;
};
void* shared_variable(const SharedVariable& variable);

// The block's dynamic shared memory, 1024-byte aligned. Its size is an argument of enqueue.
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(current_block->dynamic_shared);
}

// The 32-bit address of a place in shared memory, as PTX uses it.
std::uint32_t shared_address(const void* place);

// Memory of the simulated device, 256-byte aligned. device_allocate throws std::bad_alloc if there is too
// little memory. device_release first runs all work that is enqueued on any stream, as cudaFree waits for it.
// It throws std::runtime_error for memory that is not allocated.
void* device_allocate(std::size_t bytes);
void device_release(void* memory);

// ---- kernel launch

struct KernelCall {
  const void* kernel;
  void (*run)(const void* arguments);
  std::shared_ptr<const void> (*keep)(const void* arguments);  // copies the arguments
  const void* arguments;
};
void enqueue_grid(Stream stream, const Grid& grid, dim3 block, std::size_t shared_bytes,
                  const KernelCall& call);

// Enqueues kernel<<<grid, block, shared_bytes, stream>>>(arguments...) with the options() of now. Throws
// std::runtime_error for a launch that a GPU would refuse. Every defect found in the kernel is thrown as
// std::runtime_error by the call that runs the kernel: this one if Options::streams is at_once. The device
// can be used again afterwards.
template <class... Parameters, class... Arguments>
void enqueue(void (*kernel)(Parameters...), Grid grid, dim3 block, std::size_t shared_bytes, Stream stream,
             Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "enqueue: wrong number of kernel arguments");
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  } call{kernel, {static_cast<Parameters>(arguments)...}};
  const auto run = [](const void* memory) {
    const Call& self = *static_cast<const Call*>(memory);
    std::apply(self.kernel, self.arguments);
  };
  const auto keep = [](const void* memory) -> std::shared_ptr<const void> {
    return std::make_shared<const Call>(*static_cast<const Call*>(memory));
  };
  enqueue_grid(stream, grid, block, shared_bytes, {reinterpret_cast<const void*>(kernel), run, keep, &call});
}

}  // namespace goat::on_simt
