// Where a device's operations take their temporary memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device.h"

namespace goat {

// The memory that use() was given, or else memory of its own, which grows with the largest operation so far.
class Workspace {
 public:
  using Allocate = void* (*)(std::size_t bytes);  // 256-byte aligned
  using Release = void (*)(void* memory);

  // `allocate` and `release` are for its own memory. They are not the device's virtual functions: a derived
  // device that overrides them is destroyed before its workspace. While *own_refused is true, take() throws
  // std::logic_error if it would take its own memory, because that moves when it grows.
  Workspace(const Device& device, Allocate allocate, Release release, const bool* own_refused = nullptr)
      : device_(device), allocate_(allocate), own_(nullptr, release), own_refused_(own_refused) {}

  WorkspaceMemory use(WorkspaceMemory memory);  // see Device::use_workspace

  // Device::workspace(op) bytes for the launch of `op`, 256-byte aligned; their contents are undefined.
  // nullptr if it needs none. The next launch may get the same bytes. A launch calls this before it enqueues
  // anything, so that an operation without enough memory changes nothing.
  template <class Operation>
  void* take(const Operation& op) {
    return take(name_of(op), device_.workspace(op));
  }

 private:
  void* take(const char* operation, std::size_t bytes);
  void* memory_for(const char* operation, std::size_t bytes);

  const Device& device_;
  Allocate allocate_;
  WorkspaceMemory given_;
  std::unique_ptr<void, Release> own_;
  std::size_t own_bytes_ = 0;
  const bool* own_refused_;
};

// Cuts a workspace into arrays, one after the other. Without memory it only counts their bytes.
class WorkspaceArrays {
 public:
  explicit WorkspaceArrays(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class T>
  T* next(std::int64_t count) {
    const std::size_t first = (bytes_ + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_ = first + static_cast<std::size_t>(count) * sizeof(T);
    return memory_ ? reinterpret_cast<T*>(memory_ + first) : nullptr;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace goat
