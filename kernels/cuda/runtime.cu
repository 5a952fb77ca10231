// The CUDA runtime calls of the device.
#include "kernels/cuda/runtime.cuh"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "kernels/cuda/open.h"

namespace goat::on_cuda {

namespace {
__global__ void __launch_bounds__(32) probe() {}

cudaDeviceProp current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device));
  return properties;
}

std::string capability_of(const cudaDeviceProp& gpu) {
  return std::string("compute capability ") + std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
}

// "GPU-5fd4f7be-...", as nvidia-smi -L prints it.
std::string uuid_of(const cudaDeviceProp& gpu) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(gpu.uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// Whether a kernel failed to load because the binary has no code for the GPU. Otherwise the GPU has a
// fault or is in use.
bool is_missing_code(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
         status == cudaErrorInvalidKernelImage || status == cudaErrorInvalidPtx ||
         status == cudaErrorUnsupportedPtxVersion || status == cudaErrorJitCompilationDisabled;
}

// CUDA's text for an error. Clears the error.
std::string words_for(cudaError_t status) {
  cudaGetLastError();
  return cudaGetErrorString(status);
}

void check_allocation(cudaError_t status,
                      const std::source_location where = std::source_location::current()) {
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw std::bad_alloc();
  }
  check_cuda(status, where);
}

// The GPU of this process. CUDA gives a thread that is new to it GPU 0.
std::atomic<int> chosen_gpu = 0;
cudaError_t choose_gpu() {
  thread_local int used = 0;
  const int gpu = chosen_gpu;
  const cudaError_t status = used == gpu ? cudaSuccess : cudaSetDevice(gpu);
  if (status == cudaSuccess) used = gpu;
  return status;
}
void use_chosen_gpu() { check_cuda(choose_gpu()); }

// CUDA has one error for an old driver and for none; then the version of the driver is 0.
GpuSearch without_gpu(cudaError_t status) {
  GpuSearch search{GpuSearch::Result::none, "", "", words_for(status)};
  cudaDriverGetVersion(&search.driver);
  cudaRuntimeGetVersion(&search.toolkit);
  if (status == cudaErrorInsufficientDriver)
    search.result = search.driver == 0 ? GpuSearch::Result::no_driver : GpuSearch::Result::old_driver;
  return search;
}
}  // namespace

GpuSearch find_gpu(const DevicePlace& place) {
  using Result = GpuSearch::Result;
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess)
    return without_gpu(status);
  if (count == 0) return {Result::none};
  chosen_gpu = gpu_of(place, count);
  if (const cudaError_t status = choose_gpu(); status != cudaSuccess)
    return {Result::none, "", "", words_for(status)};
  const cudaDeviceProp gpu = current_device();
  GpuSearch search{
      Result::found, std::string(gpu.name) + ", " + capability_of(gpu),
      std::to_string(gpu.major) + std::to_string(gpu.minor) + (gpu.major == 9 && gpu.minor == 0 ? "a" : "")};
  cudaFuncAttributes code{};
  if (gpu.major < 8) {
    search.result = Result::too_old;
  } else if (const cudaError_t status = cudaFuncGetAttributes(&code, probe); status != cudaSuccess) {
    search.result = is_missing_code(status) ? Result::no_code : Result::none;
    search.error = words_for(status);
  }
  return search;
}

namespace runtime {

namespace {
// Throws for what recordings make impossible as runtime.cuh says: `captured_event` for an event that was last
// recorded in a capture.
void check_capture(cudaError_t status, const char* captured_event = event_of_recording,
                   const std::source_location where = std::source_location::current()) {
  const auto refuse = [](const char* text) {
    cudaGetLastError();
    throw std::logic_error(text);
  };
  if (status == cudaErrorStreamCaptureUnjoined) refuse(work_not_joined);
  if (status == cudaErrorStreamCaptureIsolation || status == cudaErrorStreamCaptureMerge)
    refuse(event_outside_recording);
  if (status == cudaErrorCapturedEvent) refuse(captured_event);
  check_cuda(status, where);
}
}  // namespace

Hardware hardware() {
  const cudaDeviceProp gpu = current_device();
  return {
      std::string(gpu.name) + ", " + std::to_string(gpu.multiProcessorCount) + " SMs, " + capability_of(gpu),
      gpu.multiProcessorCount, gpu.sharedMemPerBlockOptin, uuid_of(gpu)};
}

Stream create_stream(Priority priority) {
  int least = 0, greatest = 0;  // the greatest priority has the smallest number
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  Stream stream{};
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                          priority == Priority::urgent ? greatest : least));
  return stream;
}

void destroy_stream(Stream stream) noexcept { cudaStreamDestroy(stream); }
void synchronize(Stream stream) { check_cuda(cudaStreamSynchronize(stream)); }

std::size_t free_memory() {
  std::size_t free_bytes = 0, total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  check_allocation(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)));
  return memory;
}

void release(void* memory) noexcept { cudaFree(memory); }

void* allocate_host(std::size_t bytes) {
  void* memory = nullptr;
  check_allocation(cudaHostAlloc(&memory, std::max<std::size_t>(bytes, 1), cudaHostAllocDefault));
  return memory;
}

void release_host(void* memory) noexcept { cudaFreeHost(memory); }

void set_zero(void* memory, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemsetAsync(memory, 0, bytes, stream));
}

// From pageable memory cudaMemcpyAsync returns after it has staged the bytes, from page-locked memory before
// it has read them.
void upload(void* device, const void* host, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;  // perhaps without memory
  enqueue_upload(device, host, bytes, stream);
  cudaPointerAttributes source{};
  check_cuda(cudaPointerGetAttributes(&source, host));
  if (source.type == cudaMemoryTypeHost) synchronize(stream);
}

void download(void* host, const void* device, std::size_t bytes, Stream stream) {
  enqueue_download(host, device, bytes, stream);
  synchronize(stream);
}

void enqueue_upload(void* device, const void* host, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}

void enqueue_download(void* host, const void* device, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}

void copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

bool watches_accesses(Stream) { return false; }
void note_accesses(Stream, std::span<const MemoryAccess>) {}

Event create_event() {
  Event event{};
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventBlockingSync));  // a wait leaves the core to others
  return event;
}

void destroy_event(Event event) noexcept { cudaEventDestroy(event); }
void record(Event event, Stream stream) { check_cuda(cudaEventRecord(event, stream)); }
void wait(Event event) { check_capture(cudaEventSynchronize(event)); }
bool is_complete(Event event) {
  use_chosen_gpu();
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_capture(status);
  return true;
}
void stream_wait(Stream stream, Event event) {
  check_capture(cudaStreamWaitEvent(stream, event), event_of_ended_recording);
}

double seconds_between(Event first, Event last) {
  float milliseconds = 0;
  check_capture(cudaEventElapsedTime(&milliseconds, first, last));
  return milliseconds / 1e3;
}

void begin_capture(Stream stream) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

Graph end_capture(Stream stream) {
  cudaGraph_t recorded = nullptr;
  check_capture(cudaStreamEndCapture(stream, &recorded));
  Graph graph{};
  const cudaError_t status = cudaGraphInstantiate(&graph, recorded);
  cudaGraphDestroy(recorded);
  check_allocation(status);
  return graph;
}

void abandon_capture(Stream stream) noexcept {
  cudaGraph_t recorded = nullptr;
  cudaStreamEndCapture(stream, &recorded);
  if (recorded) cudaGraphDestroy(recorded);
  cudaGetLastError();  // the end of a failed capture is an error itself
}

void replay(Graph graph, Stream stream) { check_cuda(cudaGraphLaunch(graph, stream)); }
void destroy_graph(Graph graph) noexcept { cudaGraphExecDestroy(graph); }

}  // namespace runtime

}  // namespace goat::on_cuda
