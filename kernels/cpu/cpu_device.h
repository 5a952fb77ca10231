// The CPU device: fp32 (products also of bf16 factors), OpenMP over rows and heads, SIMD (simd.h), oneDNN for
// GEMM. Each layer's file defines its launch(). The thread that calls a norm or an elementwise forward
// operation does a single row alone, because that takes less time than to wake the others.
#pragma once

#include "kernels/device.h"
#include "kernels/workspace.h"

namespace goat {

class CpuDevice : public Device {
 public:
  CpuDevice();
  const DeviceInfo& info() const override { return info_; }
  std::size_t available_memory() const override;
  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void set_zero(void* memory, std::size_t bytes) override;
  void upload(void* device, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void synchronize() override {}
  std::unique_ptr<Device> open_stream() override { return std::make_unique<CpuDevice>(); }

  // Depends also on the number of OpenMP threads at the time of the call. What oneDNN allocates for a matrix
  // product does not count.
  WorkspaceMemory use_workspace(WorkspaceMemory memory) override { return workspace_.use(memory); }
  using Device::workspace;
  std::size_t workspace(const LinearForward& op) const override;
  std::size_t workspace(const LinearBackwardInput& op) const override;
  std::size_t workspace(const LinearBackwardWeight& op) const override;
  std::size_t workspace(const LinearGeluForward& op) const override;
  std::size_t workspace(const LinearGeluBackwardInput& op) const override;
  std::size_t workspace(const LayerNormBackward& op) const override;
  std::size_t workspace(const RmsNormBackward& op) const override;
  std::size_t workspace(const SinkForward& op) const override;
  std::size_t workspace(const SinkBackward& op) const override;
  std::size_t workspace(const PriorLanesBackward& op) const override;
  std::size_t workspace(const AttentionForward& op) const override;
  std::size_t workspace(const AttentionBackward& op) const override;

 protected:
#define GOAT_OVERRIDE_LAUNCH(Operation, name) void launch(const Operation& op) override;
  GOAT_FOR_EACH_OPERATION(GOAT_OVERRIDE_LAUNCH)
#undef GOAT_OVERRIDE_LAUNCH

 private:
  DeviceInfo info_;
  Workspace workspace_;
};

}  // namespace goat
