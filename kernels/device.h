// Device: the interface between the trainer and the hardware.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/memory_access.h"
#include "kernels/operations.h"

namespace goat {

struct DeviceInfo {
  std::string name;         // "cpu", "cuda", "simt"
  std::string description;  // "AMD EPYC, 2 threads, AVX-512, oneDNN 2.6.3"
  // A large temporary matrix, such as the logits, is computed in chunks of about so many elements. Smaller
  // chunks cost speed, larger ones only memory.
  std::int64_t chunk_elements = 0;
  std::string uuid{};  // of the GPU; empty for other devices
};

// Memory for the temporary data of operations.
struct WorkspaceMemory {
  void* data = nullptr;  // 256-byte aligned
  std::size_t bytes = 0;
};

// A point in the work of a device: Device::record. The base class is the event of a device that completes
// everything at once; it only knows the time.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;

 private:
  friend class Device;
  std::chrono::steady_clock::time_point time_{};
};

// Work that was recorded by Device::capture.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// Operations and copies are enqueued on the device's stream and complete in order. synchronize() waits for
// all of them. Failures throw std::runtime_error; allocate throws std::bad_alloc.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // Bytes that can still be allocated, as far as the system knows.
  virtual std::size_t available_memory() const = 0;
  // Memory is 256-byte aligned and its contents are undefined. release accepts nullptr and
  // what allocate returned.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void set_zero(void* memory, std::size_t bytes) = 0;
  // The host memory may be reused when upload returns.
  virtual void upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device, std::size_t bytes) = 0;  // complete on return
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;  // device to device, not overlapping
  virtual void synchronize() = 0;

  // Whether work is complete when the call that enqueues it returns, so that there is nothing to run ahead
  // of.
  virtual bool completes_at_once() const { return true; }

  // Memory of the host that the device reads and writes by itself while the host goes on: page-locked where
  // the device is a GPU. 256-byte aligned; its contents are undefined. release_host accepts nullptr and what
  // allocate_host returned, once no copy uses it any more.
  virtual void* allocate_host(std::size_t bytes);
  virtual void release_host(void* memory) noexcept;
  // Enqueue a copy from or to memory of allocate_host and return at once. The host must not touch that memory
  // until an event that was recorded afterwards is complete.
  virtual void enqueue_upload(void* device, const void* host, std::size_t bytes);
  virtual void enqueue_download(void* host, const void* device, std::size_t bytes);

  // record() marks the end of what has been enqueued so far. wait() returns when everything before the
  // event's latest record() is complete, and at once if there was none.
  virtual std::unique_ptr<DeviceEvent> make_event() { return std::make_unique<DeviceEvent>(); }
  // seconds_between() is the time on the device between two records, after both are complete.
  virtual void record(DeviceEvent& event);
  virtual void wait(DeviceEvent&) {}
  virtual double seconds_between(const DeviceEvent& first, const DeviceEvent& last) const;

  // Another stream of this device, as a device of its own: it has the same memory, temporary memory of its
  // own, and what is enqueued on it runs beside the work of this one; where both have work, its own goes
  // first. This device must outlive it. Throws std::logic_error where there is no other stream.
  virtual std::unique_ptr<Device> open_stream();
  // What is enqueued from now on begins after the event's latest record(), on whichever stream that was. The
  // host does not wait.
  virtual void follow(DeviceEvent&) {}

  // Records what `work` enqueues, without running it. `work` may run operations, copy(), set_zero(), record()
  // and follow(); what needs the host (upload, download, synchronize, allocate, wait) throws
  // std::logic_error, on this device and on its further streams. The recorded work keeps the operands of its
  // operations; the memory that they point to must stay allocated.
  // A further stream joins the recording when it follows an event that was recorded in it. What it enqueues
  // from then on is recorded as well. Before `work` returns, this device must follow an event that the other
  // stream records after its latest work. Streams of a recording follow events of the recording only, and no
  // other stream or host waits for such an event. All else throws std::logic_error, and no stream records any
  // more.
  // replay() enqueues the work of all its streams again on this device, as often as it is called. Both throw
  // std::logic_error unless can_capture().
  virtual bool can_capture() const { return false; }
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work);
  virtual void replay(DeviceGraph& graph);

  // From now on operations take their temporary memory from `memory`, which must stay allocated until they
  // are complete. An operation that needs more throws std::logic_error and changes nothing. Without data the
  // device allocates what they need itself. Returns the memory that was used until now.
  virtual WorkspaceMemory use_workspace(WorkspaceMemory memory) = 0;

  // The bytes of temporary memory that the operation takes. They depend on the device and on the shapes,
  // dtypes and flags of the operation, not on what its tensors hold or where they are: the tensors may be
  // planned.
#define GOAT_DECLARE_WORKSPACE(Operation, name) \
  virtual std::size_t workspace(const Operation&) const { return 0; }
  GOAT_FOR_EACH_OPERATION(GOAT_DECLARE_WORKSPACE)
#undef GOAT_DECLARE_WORKSPACE

  // Checks the operands and enqueues the operation.
  template <class Operation>
  void run(const Operation& op) {
    if (watches_accesses())
      note_accesses(accesses_of([&] { check(op); }));
    else
      check(op);
    launch(op);
  }

 protected:
  friend class Workspace;
  // A device that looks for streams which do not wait for each other is told of what each operation accesses,
  // before it is enqueued: of the operands, and of the workspace. It may throw std::runtime_error.
  virtual bool watches_accesses() const { return false; }
  virtual void note_accesses(std::span<const MemoryAccess>) const {}

#define GOAT_DECLARE_LAUNCH(Operation, name) virtual void launch(const Operation& op) = 0;
  GOAT_FOR_EACH_OPERATION(GOAT_DECLARE_LAUNCH)
#undef GOAT_DECLARE_LAUNCH
};

// While this lives, the device's operations take their temporary memory from `memory`.
class WorkspaceScope {
 public:
  WorkspaceScope(Device& device, WorkspaceMemory memory)
      : device_(device), before_(device.use_workspace(memory)) {}
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;
  ~WorkspaceScope() { device_.use_workspace(before_); }

 private:
  Device& device_;
  WorkspaceMemory before_;
};

// Device memory that is released when its owner is destroyed.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device& device, std::size_t bytes)
      : device_(&device), memory_(device.allocate(bytes)), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (device_) device_->release(memory_);
  }

  void* data() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// Memory of Device::allocate_host that is released when its owner is destroyed.
class HostBuffer {
 public:
  HostBuffer(Device& device, std::size_t bytes) : device_(device), memory_(device.allocate_host(bytes)) {}
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer() { device_.release_host(memory_); }
  void* data() const { return memory_; }

 private:
  Device& device_;
  void* memory_;
};

}  // namespace goat
