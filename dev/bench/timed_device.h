// TimedDevice: a Device that passes every call on to another one and adds up time, FLOPs and bytes by kind of
// operation.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "dev/bench/clock.h"
#include "dev/bench/operation_work.h"
#include "kernels/device.h"

namespace goat::bench {

class TimedDevice final : public Device {
 public:
  struct Total {
    long calls = 0;
    double seconds = 0;
    Work work;
  };

  // Keyed by operation; linear layers also by the layer's name without its block: "linear_forward mlp.up".
  using Totals = std::map<std::string, Total>;

  TimedDevice(Device& inner, Clock clock) : inner_(inner), clock_(clock) {}

  // What was added up since the last call.
  Totals take() { return std::exchange(totals_, {}); }

  const DeviceInfo& info() const override { return inner_.info(); }
  std::size_t available_memory() const override { return inner_.available_memory(); }
  void* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) noexcept override { inner_.release(memory); }
  void set_zero(void* memory, std::size_t bytes) override;
  void upload(void* device, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void synchronize() override { inner_.synchronize(); }

 protected:
  void launch(const EmbeddingForward& op) override { run_timed("embedding_forward", op); }
  void launch(const EmbeddingBackward& op) override { run_timed("embedding_backward", op); }
  void launch(const LayerNormForward& op) override { run_timed("layernorm_forward", op); }
  void launch(const LayerNormBackward& op) override { run_timed("layernorm_backward", op); }
  void launch(const RmsNormForward& op) override { run_timed("rmsnorm_forward", op); }
  void launch(const RmsNormBackward& op) override { run_timed("rmsnorm_backward", op); }
  void launch(const LinearForward& op) override;
  void launch(const LinearBackwardInput& op) override;
  void launch(const LinearBackwardWeight& op) override;
  void launch(const GeluForward& op) override { run_timed("gelu_forward", op); }
  void launch(const GeluBackward& op) override { run_timed("gelu_backward", op); }
  void launch(const SwigluForward& op) override { run_timed("swiglu_forward", op); }
  void launch(const SwigluBackward& op) override { run_timed("swiglu_backward", op); }
  void launch(const Rope& op) override { run_timed("rope", op); }
  void launch(const FourierTable& op) override { run_timed("fourier_table", op); }
  void launch(const SinkFeatures& op) override { run_timed("sink_features", op); }
  void launch(const SinkForward& op) override { run_timed("sink_forward", op); }
  void launch(const SinkBackward& op) override { run_timed("sink_backward", op); }
  void launch(const PriorLanesForward& op) override { run_timed("prior_lanes_forward", op); }
  void launch(const PriorLanesBackward& op) override { run_timed("prior_lanes_backward", op); }
  void launch(const SoftplusForward& op) override { run_timed("softplus_forward", op); }
  void launch(const SoftplusBackward& op) override { run_timed("softplus_backward", op); }
  void launch(const AttentionForward& op) override { run_timed("attention_forward", op); }
  void launch(const AttentionBackward& op) override { run_timed("attention_backward", op); }
  void launch(const CrossEntropy& op) override { run_timed("cross_entropy", op); }
  void launch(const AddLoss& op) override { run_timed("add_loss", op); }
  void launch(const GradientNorm& op) override { run_timed("gradient_norm", op); }
  void launch(const AdamW& op) override { run_timed("adamw", op); }
  void launch(const Fill& op) override { run_timed("fill", op); }
  void launch(const Cast& op) override { run_timed("cast", op); }

 private:
  template <class Call>
  void time(const std::string& kind, const Work& work, Call call);
  template <class Operation>
  void run_timed(const std::string& kind, const Operation& op);

  Device& inner_;
  Clock clock_;
  Totals totals_;
};

}  // namespace goat::bench
