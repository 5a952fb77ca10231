// The counterpart of kernels/cuda/runtime.cu: device memory is host memory, and streams.h holds the streams.
#include "kernels/cuda/runtime.cuh"

#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/host_memory.h"
#include "kernels/simt/device_memory.h"
#include "kernels/simt/options.h"
#include "kernels/simt/report.h"
#include "kernels/simt/scheduler.h"
#include "kernels/simt/streams.h"

namespace goat::on_simt::runtime {

namespace {
// Throws for memory that a GPU's copy engine would refuse, or that is not allocated.
void require_device_memory(const void* memory, std::size_t bytes, const char* what) {
  if (bytes > 0 && !DeviceMemory::instance().contains(memory, bytes))
    throw std::runtime_error(formatted(
        "simt: %s of %zu bytes at %p: out of bounds, no device allocation holds them", what, bytes, memory));
}

void require_page_locked(const void* memory, std::size_t bytes, const char* what) {
  if (bytes > 0 && !DeviceMemory::page_locked().contains(memory, bytes))
    throw std::runtime_error(
        formatted("simt: %s of %zu bytes: the host memory at %p is not, or no longer, memory of "
                  "Device::allocate_host; a GPU would have to copy it before the call returns",
                  what, bytes, memory));
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // an empty tensor may have no memory
}

// What a copy reads or writes.
struct Side {
  const void* memory;
  bool writes;
  const char* what;
};
using Sides = std::initializer_list<Side>;
void note_sides(Stream stream, Sides sides, std::size_t bytes) {
  for (const Side& side : sides) note_access(stream, side.memory, bytes, side.writes, side.what);
}

// Enqueues a copy whose memory `check` checks, now and again when the copy runs.
template <class Check, class Copy>
void enqueue_checked(Stream stream, Check check, Copy copy, Sides sides, std::size_t bytes) {
  check();
  note_sides(stream, sides, bytes);
  enqueue_work(stream, [check, copy] {
    check();
    copy();
  });
}

thread_local int captures = 0;  // that this thread has begun and not ended

void count_host_wait() {
  Counters one;
  one.host_waits = 1;
  add_counters(one);
}
}  // namespace

Hardware hardware() {
  const auto threads = std::to_string(std::thread::hardware_concurrency());
  return {"the CUDA kernels, simulated on " + threads + " CPU threads", options().multiprocessors,
          shared_memory_limit(options().architecture)};
}

Stream create_stream(Priority priority) {
  return StreamQueues::instance().create(priority == Priority::urgent);
}
void destroy_stream(Stream stream) noexcept {
  if (stream) StreamQueues::instance().destroy(stream);
}
void synchronize(Stream stream) {
  count_host_wait();
  if (stream) StreamQueues::instance().finish(*stream);
}

std::size_t free_memory() { return available_memory(); }
void* allocate(std::size_t bytes) { return device_allocate(bytes); }
void release(void* memory) noexcept {
  if (memory) device_release(memory);
}
void* allocate_host(std::size_t bytes) {
  return DeviceMemory::page_locked().allocate(bytes, options().poison);
}
void release_host(void* memory) noexcept {
  if (!memory) return;
  StreamQueues::instance().forget(memory, DeviceMemory::page_locked().bytes_at(memory));
  DeviceMemory::page_locked().release(memory);
}

void set_zero(void* memory, std::size_t bytes, Stream stream) {
  enqueue_checked(
      stream, [=] { require_device_memory(memory, bytes, "set_zero"); },
      [=] {
        if (bytes > 0) std::memset(memory, 0, bytes);
      },
      {{memory, true, "the memory of set_zero"}}, bytes);
}

void upload(void* device, const void* host, std::size_t bytes, Stream stream) {
  require_device_memory(device, bytes, "upload");
  note_access(stream, device, bytes, true, "the target of upload");
  if (runs_at_once(stream)) return copy_bytes(device, host, bytes);
  const auto* first = static_cast<const unsigned char*>(host);
  append(stream, [=, staged = std::vector<unsigned char>(first, first + bytes)] {
    require_device_memory(device, bytes, "upload");
    copy_bytes(device, staged.data(), bytes);
  });
}

void download(void* host, const void* device, std::size_t bytes, Stream stream) {
  enqueue_checked(
      stream, [=] { require_device_memory(device, bytes, "download"); },
      [=] { copy_bytes(host, device, bytes); }, {{device, false, "the source of download"}}, bytes);
  synchronize(stream);
}

void enqueue_upload(void* device, const void* host, std::size_t bytes, Stream stream) {
  const auto check = [=] {
    require_device_memory(device, bytes, "enqueue_upload");
    require_page_locked(host, bytes, "enqueue_upload");
  };
  enqueue_checked(
      stream, check, [=] { copy_bytes(device, host, bytes); },
      {{host, false, "the source of enqueue_upload"}, {device, true, "the target of enqueue_upload"}}, bytes);
}

// Until the copy runs, the host memory is poisoned, so that a host that reads it too early does not find what
// an earlier copy left there.
void enqueue_download(void* host, const void* device, std::size_t bytes, Stream stream) {
  const auto check = [=] {
    require_device_memory(device, bytes, "enqueue_download");
    require_page_locked(host, bytes, "enqueue_download");
  };
  check();
  note_sides(
      stream,
      {{device, false, "the source of enqueue_download"}, {host, true, "the target of enqueue_download"}},
      bytes);
  if (runs_at_once(stream)) return copy_bytes(host, device, bytes);
  if (options().poison && bytes > 0) std::memset(host, 0xFF, bytes);
  append(stream, [=] {
    check();
    copy_bytes(host, device, bytes);
  });
}

void copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  const auto check = [=] {
    require_device_memory(to, bytes, "copy");
    require_device_memory(from, bytes, "copy");
  };
  enqueue_checked(
      stream, check, [=] { copy_bytes(to, from, bytes); },
      {{from, false, "the source of copy"}, {to, true, "the target of copy"}}, bytes);
}

bool watches_accesses(Stream stream) { return stream && StreamQueues::instance().watches(*stream); }
void note_accesses(Stream stream, std::span<const MemoryAccess> accesses) {
  if (stream) StreamQueues::instance().note(*stream, accesses);
}

Event create_event() { return new EventState; }
void destroy_event(Event event) noexcept { delete event; }
void record(Event event, Stream stream) { StreamQueues::instance().record(*event, *stream); }
void stream_wait(Stream stream, Event event) { StreamQueues::instance().await(*stream, *event); }

namespace {
const EventRecord* latest_record(Event event) {
  if (event->recorded) throw std::logic_error(event_of_recording);
  return event->latest.get();
}
}  // namespace

void wait(Event event) {
  count_host_wait();
  latest_record(event);
  if (const auto record = event->latest) StreamQueues::instance().finish(*record);
}

// Takes no lock, because the work that a stream runs may take long, for example to wait for another process.
bool is_complete(Event event) {
  if (captures > 0)
    throw std::logic_error(
        "simt: a thread that captures asks whether an event is complete; a GPU refuses that, and the capture "
        "is lost");
  const EventRecord* const record = latest_record(event);
  return !record || record->complete;
}

double seconds_between(Event first, Event last) {
  for (const Event event : {first, last})
    if (const EventRecord* record = latest_record(event); !record || !record->complete || record->failure)
      throw std::runtime_error(
          "simt: the time between two events was asked for, but one of them is not complete: call wait() "
          "first");
  return std::chrono::duration<double>(last->latest->time - first->latest->time).count();
}

void begin_capture(Stream stream) {
  StreamQueues::instance().begin_recording(*stream);
  ++captures;
}
Graph end_capture(Stream stream) {
  auto graph = StreamQueues::instance().end_recording(*stream);
  --captures;
  return graph.release();
}
void abandon_capture(Stream stream) noexcept {
  StreamQueues::instance().abandon_recording(*stream);
  --captures;
}
void destroy_graph(Graph graph) noexcept { delete graph; }
void replay(Graph graph, Stream stream) {
  note_accesses(stream, graph->accesses);
  for (const std::function<void()>& work : graph->work) enqueue_work(stream, work);
}

}  // namespace goat::on_simt::runtime
