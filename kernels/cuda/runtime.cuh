// The functions of the CUDA runtime that a device uses. runtime.cu implements it with CUDA,
// kernels/simt/runtime.cpp for the simulated GPU. Errors throw std::runtime_error, or std::bad_alloc
// if memory is short.
#pragma once

#include <span>
#include <string>

#include "kernels/cuda/target.cuh"
#include "kernels/memory_access.h"

namespace goat::GOAT_TARGET::runtime {

struct Hardware {
  std::string description;  // for example "NVIDIA H100 80GB HBM3, 132 SMs, compute capability 9.0"
  int multiprocessors = 1;
  std::size_t shared_limit = 0;  // bytes of shared memory that a block may have
  std::string uuid{};            // empty for the simulated GPU
};

Hardware hardware();
// Where both have work, that of an urgent stream goes first.
enum class Priority { normal, urgent };
Stream create_stream(Priority priority = Priority::normal);
void destroy_stream(Stream stream) noexcept;
void synchronize(Stream stream);

std::size_t free_memory();
// Memory is 256-byte aligned, and has an address even for 0 bytes. release() waits for the work that is
// enqueued on any stream, and does not report its errors.
void* allocate(std::size_t bytes);
void release(void* memory) noexcept;
// Page-locked memory of the host. release_host() does not wait.
void* allocate_host(std::size_t bytes);
void release_host(void* memory) noexcept;
void set_zero(void* memory, std::size_t bytes, Stream stream);
// The caller may reuse the host memory after the return.
void upload(void* device, const void* host, std::size_t bytes, Stream stream);
// The bytes are in `host` at the return.
void download(void* host, const void* device, std::size_t bytes, Stream stream);
// `host` is memory of allocate_host(), which the copy reads or writes when its turn in the stream has come.
void enqueue_upload(void* device, const void* host, std::size_t bytes, Stream stream);
void enqueue_download(void* host, const void* device, std::size_t bytes, Stream stream);
void copy(void* to, const void* from, std::size_t bytes, Stream stream);

// Whether note_accesses() has anything to do: on a GPU never. It tells what work that is about to be enqueued
// accesses, besides the copies above. Throws std::runtime_error if work of another stream accesses the same
// memory, one of the two writes, and neither waits for the other.
bool watches_accesses(Stream stream);
void note_accesses(Stream stream, std::span<const MemoryAccess> accesses);

Event create_event();
void destroy_event(Event event) noexcept;
void record(Event event, Stream stream);
// The host waits for the event's latest record(), and stream_wait() lets a stream wait for it. Without a
// record neither waits.
void wait(Event event);
// Without waiting; true without a record. Any host thread may ask but one that captures.
bool is_complete(Event event);
void stream_wait(Stream stream, Event event);
// The time on the GPU between the latest records of two events. Throws if one is not complete.
double seconds_between(Event first, Event last);

// What this thread enqueues on the stream between begin_capture() and end_capture() is recorded, not run.
// Another stream joins by a stream_wait() for an event that was recorded on a stream of the recording; its
// work is recorded, too. Before the end the stream must wait for the latest work of all that have joined.
// abandon_capture() ends a capture that has failed. The stream that began a capture ends it. Throws
// std::logic_error with one of these texts:
inline constexpr char work_not_joined[] =
    "capture: work of another stream was not joined: before the recording ends, the stream that captures "
    "must "
    "follow an event that the other stream records after its latest work";
inline constexpr char event_outside_recording[] =
    "follow: recorded work can only follow an event that was recorded in the same Device::capture";
inline constexpr char event_of_ended_recording[] =
    "follow: the event was last recorded in a Device::capture that has ended; record it again";
inline constexpr char event_of_recording[] =
    "the event was last recorded in a Device::capture: nothing has run that the host could wait for, or ask "
    "for";
void begin_capture(Stream stream);
Graph end_capture(Stream stream);
void abandon_capture(Stream stream) noexcept;
void replay(Graph graph, Stream stream);
void destroy_graph(Graph graph) noexcept;

}  // namespace goat::GOAT_TARGET::runtime
