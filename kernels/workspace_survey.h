// WorkspaceSurvey: finds how much temporary memory a pass needs, without running it.
#pragma once

#include <cstddef>

#include "kernels/device.h"

namespace goat {

// Stands in for a device: it checks the operands of each operation and runs nothing, so that tensors may have
// made-up addresses. Copies do nothing either.
class WorkspaceSurvey final : public Device {
 public:
  explicit WorkspaceSurvey(const Device& device) : device_(device) {}

  // The largest workspace of the operations so far.
  std::size_t bytes() const { return bytes_; }

  const DeviceInfo& info() const override { return device_.info(); }
  std::size_t available_memory() const override { return device_.available_memory(); }
  void* allocate(std::size_t bytes) override;  // throws std::logic_error: a survey has no memory
  void release(void*) noexcept override {}
  void set_zero(void*, std::size_t) override {}
  void upload(void*, const void*, std::size_t) override {}
  void download(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t) override {}
  void synchronize() override {}

  WorkspaceMemory use_workspace(WorkspaceMemory memory) override;
#define GOAT_FORWARD_WORKSPACE(Operation, name) \
  std::size_t workspace(const Operation& op) const override { return device_.workspace(op); }
  GOAT_FOR_EACH_OPERATION(GOAT_FORWARD_WORKSPACE)
#undef GOAT_FORWARD_WORKSPACE

 protected:
#define GOAT_SURVEY_LAUNCH(Operation, name) void launch(const Operation& op) override;
  GOAT_FOR_EACH_OPERATION(GOAT_SURVEY_LAUNCH)
#undef GOAT_SURVEY_LAUNCH

 private:
  const Device& device_;
  std::size_t bytes_ = 0;
  WorkspaceMemory workspace_;
};

}  // namespace goat
