// A cpu device one of whose calls fails.
#pragma once

#include <functional>
#include <stdexcept>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device_lost.h"

namespace goat::test {

// Counts its calls once `armed` says so, and throws std::runtime_error("planted failure") in call number
// `fatal` (from 1; 0: never). From call number `lost_from` on it throws DeviceLost.
class FailingDevice final : public CpuDevice {
 public:
  std::function<bool()> armed = [] { return true; };
  long fatal = 0;
  long calls = 0;
  long lost_from = 0;
  bool at_once = true;  // false: the trainer runs one step ahead, as on a GPU

  bool completes_at_once() const override { return at_once; }
  void record(DeviceEvent& event) override {
    count();
    CpuDevice::record(event);
  }
  void wait(DeviceEvent& event) override {
    count();
    CpuDevice::wait(event);
  }
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
#define GOAT_COUNT_LAUNCH(Operation, name)    \
  void launch(const Operation& op) override { \
    count();                                  \
    CpuDevice::launch(op);                    \
  }
  GOAT_FOR_EACH_OPERATION(GOAT_COUNT_LAUNCH)
#undef GOAT_COUNT_LAUNCH

 private:
  void count() {
    if (!armed()) return;
    ++calls;
    if (lost_from > 0 && calls >= lost_from) throw DeviceLost("planted loss");
    if (calls == fatal) throw std::runtime_error("planted failure");
  }
};

}  // namespace goat::test
