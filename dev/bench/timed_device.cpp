#include "dev/bench/timed_device.h"

namespace goat::bench {

// "blocks.3.mlp.up.weight" -> "mlp.up"; the tied head multiplies by the embedding.
std::string TimedDevice::layer_of(const Tensor& weight) {
  std::string name = weight.name;
  if (name.starts_with("embedding")) return "head";
  if (name.starts_with("blocks.")) name = name.substr(name.find('.', 7) + 1);
  return name.substr(0, name.rfind('.'));
}

void TimedDevice::time(const std::string& kind, const Work& work, const std::function<void()>& call) {
  inner_.synchronize();
  const double start = clock_();
  call();
  inner_.synchronize();
  Total& total = totals_[kind];
  ++total.calls;
  total.seconds += clock_() - start;
  total.work.flops += work.flops;
  total.work.bytes += work.bytes;
}

void TimedDevice::set_zero(void* memory, std::size_t bytes) {
  time("set_zero", {0, static_cast<double>(bytes)}, [&] { inner_.set_zero(memory, bytes); });
}
void TimedDevice::upload(void* device, const void* host, std::size_t bytes) {
  time("upload", {0, 2.0 * static_cast<double>(bytes)}, [&] { inner_.upload(device, host, bytes); });
}
void TimedDevice::download(void* host, const void* device, std::size_t bytes) {
  time("download", {0, 2.0 * static_cast<double>(bytes)}, [&] { inner_.download(host, device, bytes); });
}
void TimedDevice::copy(void* to, const void* from, std::size_t bytes) {
  time("copy", {0, 2.0 * static_cast<double>(bytes)}, [&] { inner_.copy(to, from, bytes); });
}

}  // namespace goat::bench
