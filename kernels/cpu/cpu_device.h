// The native CPU device: fp32, OpenMP over rows and heads, SIMD inside (simd.h), oneDNN for GEMM. Each
// layer's file defines its launch().
#pragma once

#include "kernels/device.h"

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

 protected:
  void launch(const EmbeddingForward& op) override;
  void launch(const EmbeddingBackward& op) override;
  void launch(const LayerNormForward& op) override;
  void launch(const LayerNormBackward& op) override;
  void launch(const RmsNormForward& op) override;
  void launch(const RmsNormBackward& op) override;
  void launch(const LinearForward& op) override;
  void launch(const LinearBackwardInput& op) override;
  void launch(const LinearBackwardWeight& op) override;
  void launch(const GeluForward& op) override;
  void launch(const GeluBackward& op) override;
  void launch(const SwigluForward& op) override;
  void launch(const SwigluBackward& op) override;
  void launch(const Rope& op) override;
  void launch(const FourierTable& op) override;
  void launch(const SinkFeatures& op) override;
  void launch(const SinkForward& op) override;
  void launch(const SinkBackward& op) override;
  void launch(const PriorLanesForward& op) override;
  void launch(const PriorLanesBackward& op) override;
  void launch(const SoftplusForward& op) override;
  void launch(const SoftplusBackward& op) override;
  void launch(const AttentionForward& op) override;
  void launch(const AttentionBackward& op) override;
  void launch(const CrossEntropy& op) override;
  void launch(const AddLoss& op) override;
  void launch(const GradientNorm& op) override;
  void launch(const AdamW& op) override;
  void launch(const Fill& op) override;
  void launch(const Cast& op) override;

 private:
  DeviceInfo info_;
};

}  // namespace goat
