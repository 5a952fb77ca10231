// What a device does that has no queue and no memory of its own: copies are complete when they return.
#include "kernels/device.h"

#include <new>
#include <stdexcept>

namespace goat {

namespace {
constexpr std::align_val_t host_alignment{256};
}

void* Device::allocate_host(std::size_t bytes) { return ::operator new(bytes, host_alignment); }
void Device::release_host(void* memory) noexcept { ::operator delete(memory, host_alignment); }
void Device::enqueue_upload(void* device, const void* host, std::size_t bytes) {
  upload(device, host, bytes);
}
void Device::enqueue_download(void* host, const void* device, std::size_t bytes) {
  download(host, device, bytes);
}

void Device::record(DeviceEvent& event) { event.time_ = std::chrono::steady_clock::now(); }
double Device::seconds_between(const DeviceEvent& first, const DeviceEvent& last) const {
  return std::chrono::duration<double>(last.time_ - first.time_).count();
}

std::unique_ptr<Device> Device::open_stream() {
  throw std::logic_error("open_stream: this device has one stream");
}

std::unique_ptr<DeviceGraph> Device::capture(const std::function<void()>&) {
  throw std::logic_error("device " + info().name + " cannot record its work");
}
void Device::replay(DeviceGraph&) {
  throw std::logic_error("device " + info().name + " has recorded no work");
}

}  // namespace goat
