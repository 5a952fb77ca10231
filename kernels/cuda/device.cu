// Memory, stream, events and recorded work of a CudaDevice.
#include <stdexcept>
#include <string>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/open.h"
#include "kernels/cuda/runtime.cuh"

namespace goat::GOAT_TARGET {

namespace {
// 1 GiB of bf16 logits. Each chunk reads and writes the fp32 gradient of the head's weight once, 309 MB at
// V = 50,304 and C = 768.
constexpr std::int64_t chunk_elements = std::int64_t{512} << 20;

// The loaded code itself reports the families that it holds, because the driver chose it or
// compiled it from PTX.
__global__ void __launch_bounds__(32) report_families_kernel(LoadedFamilies* families) {
  if (threadIdx.x == 0) *families = {compiled_for<Family::large_shared>, compiled_for<Family::small_shared>};
}

struct StreamEvent final : DeviceEvent {
  StreamEvent() : event(runtime::create_event()) {}
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;
  ~StreamEvent() override { runtime::destroy_event(event); }
  const Event event;
};

struct StreamGraph final : DeviceGraph {
  explicit StreamGraph(Graph recorded) : graph(recorded) {}
  StreamGraph(const StreamGraph&) = delete;
  StreamGraph& operator=(const StreamGraph&) = delete;
  ~StreamGraph() override { runtime::destroy_graph(graph); }
  const Graph graph;
};

Event event_of(const DeviceEvent& event) {
  const auto* known = dynamic_cast<const StreamEvent*>(&event);
  if (!known) throw std::logic_error("an event was made by another kind of device");
  return known->event;
}
}  // namespace

CudaDevice::CudaDevice()
    : capture_(std::make_shared<Capture>()),
      workspace_(*this, runtime::allocate, runtime::release, &capture_->on) {
  const runtime::Hardware hardware = runtime::hardware();
  info_ = {GOAT_SIMT ? "simt" : "cuda", hardware.description, chunk_elements, hardware.uuid};
  multiprocessors_ = hardware.multiprocessors;
  stream_ = runtime::create_stream();
  LoadedFamilies families{};
  const DeviceBuffer answer(*this, sizeof families);
  enqueue(report_families_kernel, 1, 32, 0, stream_, static_cast<LoadedFamilies*>(answer.data()));
  runtime::download(&families, answer.data(), sizeof families, stream_);
  family_ = choose_family(hardware.shared_limit, families);
  gemm_ = std::make_unique<Gemm>(stream_);
}

CudaDevice::CudaDevice(const CudaDevice* first)
    : info_(first->info_),
      stream_(runtime::create_stream(runtime::Priority::urgent)),
      capture_(first->capture_),
      gemm_(std::make_unique<Gemm>(stream_)),
      multiprocessors_(first->multiprocessors_),
      family_(first->family_),
      workspace_(*this, runtime::allocate, runtime::release, &capture_->on) {}

std::unique_ptr<Device> CudaDevice::open_stream() { return std::make_unique<CudaDevice>(this); }

CudaDevice::~CudaDevice() {
  gemm_.reset();
  runtime::destroy_stream(stream_);
}

std::size_t CudaDevice::available_memory() const { return runtime::free_memory(); }
void* CudaDevice::allocate(std::size_t bytes) {
  refuse_in_capture("allocate");
  return runtime::allocate(bytes);
}
void* CudaDevice::allocate_host(std::size_t bytes) {
  refuse_in_capture("allocate_host");
  return runtime::allocate_host(bytes);
}

// runtime::release waits for work that still uses the memory; nothing waits for page-locked memory.
void CudaDevice::release(void* memory) noexcept { release_after_capture(runtime::release, memory); }
void CudaDevice::release_host(void* memory) noexcept { release_after_capture(runtime::release_host, memory); }

void CudaDevice::set_zero(void* memory, std::size_t bytes) { runtime::set_zero(memory, bytes, stream_); }
void CudaDevice::copy(void* to, const void* from, std::size_t bytes) {
  runtime::copy(to, from, bytes, stream_);
}
void CudaDevice::upload(void* device, const void* host, std::size_t bytes) {
  refuse_in_capture("upload");
  runtime::upload(device, host, bytes, stream_);
}
void CudaDevice::download(void* host, const void* device, std::size_t bytes) {
  refuse_in_capture("download");
  runtime::download(host, device, bytes, stream_);
}
void CudaDevice::enqueue_upload(void* device, const void* host, std::size_t bytes) {
  refuse_in_capture("enqueue_upload");
  runtime::enqueue_upload(device, host, bytes, stream_);
}
void CudaDevice::enqueue_download(void* host, const void* device, std::size_t bytes) {
  refuse_in_capture("enqueue_download");
  runtime::enqueue_download(host, device, bytes, stream_);
}
void CudaDevice::synchronize() {
  refuse_in_capture("synchronize");
  runtime::synchronize(stream_);
}

bool CudaDevice::watches_accesses() const { return runtime::watches_accesses(stream_); }
void CudaDevice::note_accesses(std::span<const MemoryAccess> accesses) const {
  runtime::note_accesses(stream_, accesses);
}

std::unique_ptr<DeviceEvent> CudaDevice::make_event() { return std::make_unique<StreamEvent>(); }
void CudaDevice::record(DeviceEvent& event) { runtime::record(event_of(event), stream_); }
void CudaDevice::wait(DeviceEvent& event) {
  refuse_in_capture("wait");
  runtime::wait(event_of(event));
}
void CudaDevice::follow(DeviceEvent& event) { runtime::stream_wait(stream_, event_of(event)); }
double CudaDevice::seconds_between(const DeviceEvent& first, const DeviceEvent& last) const {
  return runtime::seconds_between(event_of(first), event_of(last));
}

void CudaDevice::refuse_in_capture(const char* call) const {
  if (capture_->on)
    throw std::logic_error(
        std::string(call) +
        ": not in Device::capture, which records operations, copy, set_zero, record and follow only");
}

// A GPU releases no memory while this thread captures.
void CudaDevice::release_after_capture(Release by, void* memory) noexcept {
  if (capture_->on)
    capture_->released.emplace_back(by, memory);
  else
    by(memory);
}

std::unique_ptr<DeviceGraph> CudaDevice::capture(const std::function<void()>& work) {
  refuse_in_capture("capture");
  runtime::begin_capture(stream_);
  capture_->on = true;
  Graph graph{};
  try {
    work();
    graph = runtime::end_capture(stream_);
  } catch (...) {
    runtime::abandon_capture(stream_);
    end_capture();
    throw;
  }
  end_capture();
  return std::make_unique<StreamGraph>(graph);
}

void CudaDevice::end_capture() noexcept {
  capture_->on = false;
  for (const auto& [by, memory] : std::exchange(capture_->released, {})) by(memory);
}

void CudaDevice::replay(DeviceGraph& graph) {
  refuse_in_capture("replay");
  const auto* recorded = dynamic_cast<const StreamGraph*>(&graph);
  if (!recorded) throw std::logic_error("replay: the work was recorded by another kind of device");
  runtime::replay(recorded->graph, stream_);
}

std::unique_ptr<Device> open_device() { return std::make_unique<CudaDevice>(); }

}  // namespace goat::GOAT_TARGET
