// TimedDevice: a Device that passes every call on to another one and adds up time, FLOPs and bytes by kind of
// operation.
#pragma once

#include <functional>
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
  WorkspaceMemory use_workspace(WorkspaceMemory memory) override { return inner_.use_workspace(memory); }
#define GOAT_FORWARD_WORKSPACE(Operation, name) \
  std::size_t workspace(const Operation& op) const override { return inner_.workspace(op); }
  GOAT_FOR_EACH_OPERATION(GOAT_FORWARD_WORKSPACE)
#undef GOAT_FORWARD_WORKSPACE

 protected:
#define GOAT_TIME_LAUNCH(Operation, name) \
  void launch(const Operation& op) override { run_timed(kind_of(op), op); }
  GOAT_FOR_EACH_OPERATION(GOAT_TIME_LAUNCH)
#undef GOAT_TIME_LAUNCH

 private:
  void time(const std::string& kind, const Work& work, const std::function<void()>& call);
  template <class Operation>
  void run_timed(const std::string& kind, const Operation& op) {
    time(kind, work_of(op), [&] { inner_.run(op); });
  }

  // The operation's name; of a matrix product with the layer's. A weight gradient has the name of its weight.
  static std::string kind_of(const auto& op) {
    if constexpr (requires {
                    op.dweight;
                    op.dbias;
                    op.tf32;
                  })
      return std::string(name_of(op)) + " " + layer_of(op.dweight);
    else if constexpr (requires {
                         op.weight;
                         op.tf32;
                       })
      return std::string(name_of(op)) + " " + layer_of(op.weight);
    else
      return name_of(op);
  }
  static std::string layer_of(const Tensor& weight);

  Device& inner_;
  Clock clock_;
  Totals totals_;
};

}  // namespace goat::bench
