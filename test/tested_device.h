// A device as the tests of the operations open it: it checks the workspace of every operation.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace goat::test {

// Passes every call on to another device. An operation runs in a workspace of exactly Device::workspace(op)
// bytes, full of NaN and between guard bytes. It throws std::runtime_error if
// * the operation accepts a workspace that is one byte too small, or refuses it with another error,
// * it writes a guard byte,
// * a result differs in a bit from that without a given workspace. This is checked while the test holds
//   little memory, because all of it is compared,
// * an operand changes that its Signature does not call written (same condition, and only where the device
//   runs work at once).
// An operation that is recorded (capture) is not checked.
class TestedDevice final : public Device {
 public:
  explicit TestedDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  const DeviceInfo& info() const override { return inner_->info(); }
  std::size_t available_memory() const override { return inner_->available_memory(); }
  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void set_zero(void* memory, std::size_t bytes) override { inner_->set_zero(memory, bytes); }
  void upload(void* to, const void* from, std::size_t bytes) override { inner_->upload(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { inner_->download(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { inner_->copy(to, from, bytes); }
  void synchronize() override { inner_->synchronize(); }
  void* allocate_host(std::size_t bytes) override { return inner_->allocate_host(bytes); }
  void release_host(void* memory) noexcept override { inner_->release_host(memory); }
  void enqueue_upload(void* to, const void* from, std::size_t bytes) override {
    inner_->enqueue_upload(to, from, bytes);
  }
  void enqueue_download(void* to, const void* from, std::size_t bytes) override {
    inner_->enqueue_download(to, from, bytes);
  }
  std::unique_ptr<DeviceEvent> make_event() override { return inner_->make_event(); }
  void record(DeviceEvent& event) override { inner_->record(event); }
  void wait(DeviceEvent& event) override { inner_->wait(event); }
  double seconds_between(const DeviceEvent& first, const DeviceEvent& last) const override {
    return inner_->seconds_between(first, last);
  }
  bool can_capture() const override { return inner_->can_capture(); }
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override;
  void replay(DeviceGraph& graph) override { inner_->replay(graph); }
  WorkspaceMemory use_workspace(WorkspaceMemory memory) override { return inner_->use_workspace(memory); }
#define GOAT_FORWARD_WORKSPACE(Operation, name) \
  std::size_t workspace(const Operation& op) const override { return inner_->workspace(op); }
  GOAT_FOR_EACH_OPERATION(GOAT_FORWARD_WORKSPACE)
#undef GOAT_FORWARD_WORKSPACE

 protected:
#define GOAT_CHECK_LAUNCH(Operation, name) void launch(const Operation& op) override;
  GOAT_FOR_EACH_OPERATION(GOAT_CHECK_LAUNCH)
#undef GOAT_CHECK_LAUNCH

 private:
  using Contents = std::vector<std::vector<unsigned char>>;  // of the allocations, in the order of the map

  template <class Operation>
  void run_checked(const Operation& op);
  template <class Operation>
  void run_in_workspace(const Operation& op);
  bool can_compare() const;
  bool runs_late() const;
  Contents contents_of(const std::vector<MemoryAccess>& accesses);
  Contents contents();
  void restore(const Contents& contents);

  std::unique_ptr<Device> inner_;
  bool capturing_ = false;
  std::map<void*, std::size_t> allocations_;  // what the test holds: memory and bytes
};

// Opens a device for a test of the operations.
std::unique_ptr<Device> open_tested(const std::string& name);

}  // namespace goat::test
