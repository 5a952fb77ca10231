// TimedDevice: a Device that passes every call on to another one and keeps when it ran, on the host and on
// the device, with its FLOPs and bytes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "train/profile/clock.h"
#include "train/profile/operation_work.h"

namespace goat {

// Times are seconds from TimedDevice::start on.
struct TimedCall {
  enum class Kind {
    operation,  // what the device computes, and copies inside it
    host_copy,  // between host and device
    host        // nothing on the device: a wait, or a range that was entered and left
  };
  Kind kind = Kind::operation;
  std::string name{};  // of linear layers with the layer's name without its block: "linear_forward mlp.up"
  Work work{};
  double host_start = 0, host_seconds = 0;
  double device_start = 0, device_seconds = 0;
};

// Device times are those between two events around each call, so that a call is never waited for. Nothing is
// captured as a graph (can_capture() is false): a graph has no times for its parts. Calls come from one
// thread.
class TimedDevice final : public Device {
 public:
  explicit TimedDevice(Device& inner, Clock clock = wall_clock) : inner_(inner), clock_(clock) {}

  // Waits for the device, forgets the calls so far, and makes the events of `calls` calls in advance.
  void start(std::size_t calls = 0);
  // The calls since start(), in the order of their ends on the host. Waits for the device.
  std::vector<TimedCall> take();
  // A range on the host's row and on Nsight's time line. Ranges nest.
  void enter(std::string name);
  void leave();

  const DeviceInfo& info() const override { return inner_.info(); }
  std::size_t available_memory() const override { return inner_.available_memory(); }
  void* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) noexcept override { inner_.release(memory); }
  void set_zero(void* memory, std::size_t bytes) override;
  void upload(void* device, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void synchronize() override;
  void* allocate_host(std::size_t bytes) override { return inner_.allocate_host(bytes); }
  void release_host(void* memory) noexcept override { inner_.release_host(memory); }
  void enqueue_upload(void* device, const void* host, std::size_t bytes) override;
  void enqueue_download(void* host, const void* device, std::size_t bytes) override;
  std::unique_ptr<DeviceEvent> make_event() override { return inner_.make_event(); }
  void record(DeviceEvent& event) override { inner_.record(event); }
  void wait(DeviceEvent& event) override;
  double seconds_between(const DeviceEvent& first, const DeviceEvent& last) const override {
    return inner_.seconds_between(first, last);
  }
  WorkspaceMemory use_workspace(WorkspaceMemory memory) override { return inner_.use_workspace(memory); }
#define GOAT_FORWARD_WORKSPACE(Operation, name) \
  std::size_t workspace(const Operation& op) const override { return inner_.workspace(op); }
  GOAT_FOR_EACH_OPERATION(GOAT_FORWARD_WORKSPACE)
#undef GOAT_FORWARD_WORKSPACE

 protected:
#define GOAT_TIME_LAUNCH(Operation, name)                                                 \
  void launch(const Operation& op) override {                                             \
    time(TimedCall::Kind::operation, label_of(op), work_of(op), [&] { inner_.run(op); }); \
  }
  GOAT_FOR_EACH_OPERATION(GOAT_TIME_LAUNCH)
#undef GOAT_TIME_LAUNCH

 private:
  // The events around a call are number `event` and the one after it.
  struct Pending {
    TimedCall call;
    std::size_t event = 0;
  };
  void time(TimedCall::Kind kind, std::string name, const Work& work, const std::function<void()>& call);
  void time_copy(TimedCall::Kind kind, std::string name, std::size_t bytes,
                 const std::function<void()>& call);
  DeviceEvent& event(std::size_t index);

  // The operation's name; of a matrix product with the layer's. A weight gradient has the name of its weight.
  static std::string label_of(const auto& op) {
    if constexpr (requires {
                    op.dweight;
                    op.dbias;
                    op.factors;
                  })
      return std::string(name_of(op)) + " " + layer_of(op.dweight);
    else if constexpr (requires {
                         op.weight;
                         op.factors;
                       })
      return std::string(name_of(op)) + " " + layer_of(op.weight);
    else
      return name_of(op);
  }
  static std::string layer_of(const Tensor& weight);

  Device& inner_;
  Clock clock_;
  double origin_ = 0;                                 // of the host's times
  std::unique_ptr<DeviceEvent> device_origin_;        // of the device's
  std::vector<std::unique_ptr<DeviceEvent>> events_;  // those below used_ belong to calls
  std::size_t used_ = 0;
  std::vector<Pending> calls_;
  std::vector<TimedCall> open_;  // ranges that were entered
};

// Sums over the calls of the same name.
struct Total {
  long calls = 0;
  double seconds = 0;
  Work work;
  TimedCall::Kind kind = TimedCall::Kind::operation;
};
using Totals = std::map<std::string, Total>;
// `seconds` says which time counts: &TimedCall::device_seconds or host_seconds. What is on the host alone is
// left out.
Totals totals_of(std::span<const TimedCall> calls, double TimedCall::*seconds);

}  // namespace goat
