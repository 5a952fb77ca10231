// The device of the hand-written kernels. goat::on_cuda::CudaDevice runs them on a GPU,
// goat::on_simt::CudaDevice runs them thread by thread on the CPU. The file of each layer defines its
// launch(). Operands are fp32 or bf16. Sums, statistics and reductions are fp32 or more precise. Every
// operation is deterministic, except AttentionBackward with deterministic = false.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/attention_traits.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/target.cuh"
#include "kernels/device.h"
#include "kernels/workspace.h"

namespace goat::GOAT_TARGET {

class CudaDevice : public Device {
 public:
  CudaDevice();
  explicit CudaDevice(const CudaDevice* first);  // another stream of it: Device::open_stream
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override;
  const DeviceInfo& info() const override { return info_; }
  std::size_t available_memory() const override;
  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void set_zero(void* memory, std::size_t bytes) override;
  void upload(void* device, const void* host, std::size_t bytes) override;
  void download(void* host, const void* device, std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void synchronize() override;

  void* allocate_host(std::size_t bytes) override;
  void release_host(void* memory) noexcept override;
  void enqueue_upload(void* device, const void* host, std::size_t bytes) override;
  void enqueue_download(void* host, const void* device, std::size_t bytes) override;
  std::unique_ptr<DeviceEvent> make_event() override;
  void record(DeviceEvent& event) override;
  void wait(DeviceEvent& event) override;
  double seconds_between(const DeviceEvent& first, const DeviceEvent& last) const override;
  std::unique_ptr<Device> open_stream() override;
  void follow(DeviceEvent& event) override;
  Stream stream() const { return stream_; }
  bool is_capturing() const { return capture_->on; }  // this stream or another one of the device
  bool completes_at_once() const override { return false; }
  bool can_capture() const override { return true; }
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override;
  void replay(DeviceGraph& graph) override;

  WorkspaceMemory use_workspace(WorkspaceMemory memory) override { return workspace_.use(memory); }
  using Device::workspace;
  std::size_t workspace(const EmbeddingBackward& op) const override;
  std::size_t workspace(const LayerNormBackward& op) const override;
  std::size_t workspace(const RmsNormBackward& op) const override;
  std::size_t workspace(const LinearForward& op) const override;
  std::size_t workspace(const LinearBackwardInput& op) const override;
  std::size_t workspace(const LinearBackwardWeight& op) const override;
  std::size_t workspace(const LinearGeluForward& op) const override;
  std::size_t workspace(const LinearGeluBackwardInput& op) const override;
  std::size_t workspace(const SinkBackward& op) const override;
  std::size_t workspace(const PriorLanesBackward& op) const override;
  std::size_t workspace(const ForgetGatesBackward& op) const override;
  std::size_t workspace(const AttentionForward& op) const override;
  std::size_t workspace(const AttentionBackward& op) const override;
  std::size_t workspace(const StepVerdict& op) const override;

 protected:
  bool watches_accesses() const override;
  void note_accesses(std::span<const MemoryAccess> accesses) const override;
#define GOAT_OVERRIDE_LAUNCH(Operation, name) void launch(const Operation& op) override;
  GOAT_FOR_EACH_OPERATION(GOAT_OVERRIDE_LAUNCH)
#undef GOAT_OVERRIDE_LAUNCH

 private:
  using Release = void (*)(void* memory) noexcept;
  // Of a device and of all its further streams.
  struct Capture {
    bool on = false;
    std::vector<std::pair<Release, void*>> released;  // by what, until the end
  };
  void refuse_in_capture(const char* call) const;
  void release_after_capture(Release by, void* memory) noexcept;
  void end_capture() noexcept;

  DeviceInfo info_;
  Stream stream_{};
  std::shared_ptr<Capture> capture_;
  std::unique_ptr<Gemm> gemm_;
  int multiprocessors_ = 1;
  Family family_ = Family::large_shared;  // of the tensor-core attention kernels
  Workspace workspace_;
};

// Calls body(T{}) with T the element type of a model tensor: float or bf16.
template <class Body>
void with_element_type(DType dtype, Body&& body) {
  if (dtype == DType::bf16)
    body(bf16{});
  else
    body(float{});
}

template <class T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

}  // namespace goat::GOAT_TARGET
