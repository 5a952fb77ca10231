// A cpu device one of whose calls fails.
#pragma once

#include <functional>
#include <stdexcept>

#include "kernels/cpu/cpu_device.h"

namespace goat::test {

// Counts its calls once `armed` says so, and throws std::runtime_error("planted failure") in call number
// `fatal` (from 1; 0: never).
class FailingDevice final : public CpuDevice {
 public:
  std::function<bool()> armed = [] { return true; };
  long fatal = 0;
  long calls = 0;

  void set_zero(void* memory, std::size_t bytes) override {
    count();
    CpuDevice::set_zero(memory, bytes);
  }
  void upload(void* device, const void* host, std::size_t bytes) override {
    count();
    CpuDevice::upload(device, host, bytes);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    count();
    CpuDevice::download(host, device, bytes);
  }

 protected:
  void launch(const EmbeddingForward& op) override { count_and_launch(op); }
  void launch(const EmbeddingBackward& op) override { count_and_launch(op); }
  void launch(const LayerNormForward& op) override { count_and_launch(op); }
  void launch(const LayerNormBackward& op) override { count_and_launch(op); }
  void launch(const RmsNormForward& op) override { count_and_launch(op); }
  void launch(const RmsNormBackward& op) override { count_and_launch(op); }
  void launch(const LinearForward& op) override { count_and_launch(op); }
  void launch(const LinearBackwardInput& op) override { count_and_launch(op); }
  void launch(const LinearBackwardWeight& op) override { count_and_launch(op); }
  void launch(const GeluForward& op) override { count_and_launch(op); }
  void launch(const GeluBackward& op) override { count_and_launch(op); }
  void launch(const SwigluForward& op) override { count_and_launch(op); }
  void launch(const SwigluBackward& op) override { count_and_launch(op); }
  void launch(const Rope& op) override { count_and_launch(op); }
  void launch(const FourierTable& op) override { count_and_launch(op); }
  void launch(const SinkFeatures& op) override { count_and_launch(op); }
  void launch(const SinkForward& op) override { count_and_launch(op); }
  void launch(const SinkBackward& op) override { count_and_launch(op); }
  void launch(const PriorLanesForward& op) override { count_and_launch(op); }
  void launch(const PriorLanesBackward& op) override { count_and_launch(op); }
  void launch(const SoftplusForward& op) override { count_and_launch(op); }
  void launch(const SoftplusBackward& op) override { count_and_launch(op); }
  void launch(const AttentionForward& op) override { count_and_launch(op); }
  void launch(const AttentionBackward& op) override { count_and_launch(op); }
  void launch(const CrossEntropy& op) override { count_and_launch(op); }
  void launch(const AddLoss& op) override { count_and_launch(op); }
  void launch(const GradientNorm& op) override { count_and_launch(op); }
  void launch(const AdamW& op) override { count_and_launch(op); }
  void launch(const Fill& op) override { count_and_launch(op); }
  void launch(const Cast& op) override { count_and_launch(op); }

 private:
  void count() {
    if (armed() && ++calls == fatal) throw std::runtime_error("planted failure");
  }
  template <class Operation>
  void count_and_launch(const Operation& op) {
    count();
    CpuDevice::launch(op);
  }
};

}  // namespace goat::test
