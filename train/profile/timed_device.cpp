#include "train/profile/timed_device.h"

#include <utility>

#include "kernels/open/ranges.h"

namespace goat {

// "blocks.3.mlp.up.weight" -> "mlp.up"; the tied head multiplies by the embedding.
std::string TimedDevice::layer_of(const Tensor& weight) {
  std::string name = weight.name;
  if (name.starts_with("embedding")) return "head";
  if (name.starts_with("blocks.")) name = name.substr(name.find('.', 7) + 1);
  return name.substr(0, name.rfind('.'));
}

void TimedDevice::start(std::size_t calls) {
  if (!device_origin_) device_origin_ = inner_.make_event();
  if (calls > 0) event(2 * calls - 1);
  calls_.clear();
  calls_.reserve(calls);
  used_ = 0;
  inner_.synchronize();
  inner_.record(*device_origin_);
  origin_ = clock_();
}

std::vector<TimedCall> TimedDevice::take() {
  inner_.synchronize();
  std::vector<TimedCall> calls;
  calls.reserve(calls_.size());
  for (Pending& pending : calls_) {
    TimedCall& call = calls.emplace_back(std::move(pending.call));
    if (call.kind == TimedCall::Kind::host) continue;
    const DeviceEvent &first = *events_[pending.event], &last = *events_[pending.event + 1];
    call.device_start = inner_.seconds_between(*device_origin_, first);
    call.device_seconds = inner_.seconds_between(first, last);
  }
  calls_.clear();
  used_ = 0;
  return calls;
}

DeviceEvent& TimedDevice::event(std::size_t index) {
  while (events_.size() <= index) events_.push_back(inner_.make_event());
  return *events_[index];
}

void TimedDevice::time(TimedCall::Kind kind, std::string name, const Work& work,
                       const std::function<void()>& call) {
  const std::size_t first = used_;
  if (kind != TimedCall::Kind::host) used_ += 2;
  push_range(name.c_str());
  const double start = clock_();
  if (kind != TimedCall::Kind::host) inner_.record(event(first));
  call();
  if (kind != TimedCall::Kind::host) inner_.record(event(first + 1));
  const double end = clock_();
  pop_range();
  calls_.push_back({{.kind = kind,
                     .name = std::move(name),
                     .work = work,
                     .host_start = start - origin_,
                     .host_seconds = end - start},
                    first});
}

void TimedDevice::enter(std::string name) {
  push_range(name.c_str());
  open_.push_back({.kind = TimedCall::Kind::host, .name = std::move(name), .host_start = clock_() - origin_});
}

void TimedDevice::leave() {
  pop_range();
  open_.back().host_seconds = clock_() - origin_ - open_.back().host_start;
  calls_.push_back({std::move(open_.back()), 0});
  open_.pop_back();
}

void TimedDevice::set_zero(void* memory, std::size_t bytes) {
  time(TimedCall::Kind::operation, "set_zero", {0, static_cast<double>(bytes)},
       [&] { inner_.set_zero(memory, bytes); });
}
// A copy reads and writes each byte.
void TimedDevice::time_copy(TimedCall::Kind kind, std::string name, std::size_t bytes,
                            const std::function<void()>& call) {
  time(kind, std::move(name), {0, 2.0 * static_cast<double>(bytes)}, call);
}
void TimedDevice::copy(void* to, const void* from, std::size_t bytes) {
  time_copy(TimedCall::Kind::operation, "copy", bytes, [&] { inner_.copy(to, from, bytes); });
}
void TimedDevice::upload(void* device, const void* host, std::size_t bytes) {
  time_copy(TimedCall::Kind::host_copy, "upload", bytes, [&] { inner_.upload(device, host, bytes); });
}
void TimedDevice::download(void* host, const void* device, std::size_t bytes) {
  time_copy(TimedCall::Kind::host_copy, "download", bytes, [&] { inner_.download(host, device, bytes); });
}
void TimedDevice::enqueue_upload(void* device, const void* host, std::size_t bytes) {
  time_copy(TimedCall::Kind::host_copy, "enqueue_upload", bytes,
            [&] { inner_.enqueue_upload(device, host, bytes); });
}
void TimedDevice::enqueue_download(void* host, const void* device, std::size_t bytes) {
  time_copy(TimedCall::Kind::host_copy, "enqueue_download", bytes,
            [&] { inner_.enqueue_download(host, device, bytes); });
}
void TimedDevice::synchronize() {
  time(TimedCall::Kind::host, "synchronize", {}, [&] { inner_.synchronize(); });
}
void TimedDevice::wait(DeviceEvent& event) {
  time(TimedCall::Kind::host, "wait", {}, [&] { inner_.wait(event); });
}

Totals totals_of(std::span<const TimedCall> calls, double TimedCall::*seconds) {
  Totals totals;
  for (const TimedCall& call : calls) {
    if (call.kind == TimedCall::Kind::host) continue;
    Total& total = totals[call.name];
    ++total.calls;
    total.seconds += call.*seconds;
    total.work.flops += call.work.flops;
    total.work.bytes += call.work.bytes;
    total.kind = call.kind;
  }
  return totals;
}

}  // namespace goat
