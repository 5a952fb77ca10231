// The temporary memory of operations: who gives it, how much they take, how a survey finds that out, and that
// the device which the other tests run on notices what is wrong with it.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/open/open_device.h"
#include "kernels/workspace_survey.h"
#include "test/catch.h"
#include "test/operand.h"
#include "test/tested_device.h"

using namespace goat;
using namespace goat::test;

namespace {
using Values = std::vector<double>;

// A call that needs a workspace on every device. Its outputs start from zero.
struct NormCall {
  Operand dsum, dweight, dout, sum, rstd, weight;
  explicit NormCall(Device& device)
      : dsum(Operand::zeros(device, {20, 8}, "dsum")),
        dweight(Operand::zeros(device, {8}, "dweight")),
        dout(Operand::of(device, Values(160, 0.5), {20, 8}, "dout")),
        sum(Operand::of(device, Values(160, 2), {20, 8}, "sum")),
        rstd(Operand::of(device, Values(20, 0.5), {20}, "rstd")),
        weight(Operand::of(device, Values(8, 1), {8}, "weight")) {}
  RmsNormBackward op() const { return {dsum, dweight, dout, sum, rstd, weight}; }
};
const Values twenty_rows(8, 20 * 0.5 * 2 * 0.5);  // dweight after one call

bool is_zero(Device& device, const DeviceBuffer& buffer) {
  std::vector<unsigned char> bytes(buffer.bytes());
  device.download(bytes.data(), buffer.data(), bytes.size());
  return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0; });
}

// A tensor that is only planned, at an address that nobody may read.
Tensor planned(DType dtype, std::initializer_list<std::int64_t> shape) {
  return Tensor::contiguous(reinterpret_cast<void*>(0x1000), dtype, shape);
}
RmsNormBackward planned_norm(std::int64_t rows, std::int64_t width) {
  constexpr DType f32 = DType::f32;
  return {planned(f32, {rows, width}), planned(f32, {width}), planned(f32, {rows, width}),
          planned(f32, {rows, width}), planned(f32, {rows}),  planned(f32, {width})};
}
}  // namespace

TEST_CASE("workspace: an operation uses the memory that the device was given, until the scope ends") {
  for (const std::string& name : device_names()) {
    INFO("device " << name);
    const auto device = open_device(name);
    const NormCall call(*device);
    const std::size_t bytes = device->workspace(call.op());
    REQUIRE(bytes > 0);
    const DeviceBuffer outer(*device, bytes), inner(*device, bytes);
    device->set_zero(outer.data(), bytes);
    device->set_zero(inner.data(), bytes);
    {
      const WorkspaceScope outer_scope(*device, {outer.data(), bytes});
      {
        const WorkspaceScope inner_scope(*device, {inner.data(), bytes});
        device->run(call.op());
      }
      CHECK_FALSE(is_zero(*device, inner));
      CHECK(is_zero(*device, outer));
      device->run(call.op());
      CHECK_FALSE(is_zero(*device, outer));
    }
    device->set_zero(outer.data(), bytes);
    device->run(call.op());
    CHECK(is_zero(*device, outer));
  }
}

TEST_CASE("workspace: an operation that needs more says so and changes nothing") {
  for (const std::string& name : device_names()) {
    INFO("device " << name);
    const auto device = open_device(name);
    const NormCall call(*device);
    const std::size_t bytes = device->workspace(call.op());
    const DeviceBuffer memory(*device, bytes);
    {
      const WorkspaceScope scope(*device, {memory.data(), bytes - 1});
      CHECK_THROWS_AS(device->run(call.op()), std::logic_error);
      CHECK_THROWS_WITH(device->run(call.op()),
                        ContainsSubstring("rmsnorm_backward: needs a workspace of " + std::to_string(bytes) +
                                          " bytes, but use_workspace gave " + std::to_string(bytes - 1)));
    }
    CHECK(call.dsum.values() == Values(160, 0));
    CHECK(call.dweight.values() == Values(8, 0));
    device->run(call.op());
    CHECK(call.dweight.values() == twenty_rows);
    CHECK_THROWS_AS(device->use_workspace({static_cast<unsigned char*>(memory.data()) + 64, 64}),
                    std::invalid_argument);
  }
}

TEST_CASE("workspace: does not depend on where the tensors are, nor on whether they have memory") {
  for (const std::string& name : device_names()) {
    INFO("device " << name);
    const auto device = open_device(name);
    LinearBackwardWeight linear{planned(DType::f32, {8, 4}), planned(DType::f32, {8}),
                                planned(DType::f32, {600, 8}), planned(DType::f32, {600, 4})};
    const std::size_t bytes = device->workspace(linear);
    for (Tensor* tensor : {&linear.dweight, &linear.dbias, &linear.dout, &linear.x})
      tensor->data = reinterpret_cast<void*>(0x1004);
    CHECK(device->workspace(linear) == bytes);
    for (Tensor* tensor : {&linear.dweight, &linear.dbias, &linear.dout, &linear.x}) tensor->data = nullptr;
    CHECK(device->workspace(linear) == bytes);
    if (name != "cpu") CHECK(bytes >= 3 * 8 * sizeof(double));  // three slices of dbias

    AttentionBackward attention;
    attention.out = attention.dout = attention.q = attention.k = attention.v = attention.dq = attention.dk =
        attention.dv = Tensor::contiguous(nullptr, DType::bf16, {1, 64, 2, 64});
    attention.deterministic = false;
    const std::size_t planned_bytes = device->workspace(attention);
    if (name == "simt") CHECK(planned_bytes == 2 * 64 * 64 * sizeof(float));
    for (Tensor* tensor : {&attention.q, &attention.dq})
      tensor->data = reinterpret_cast<void*>(0x1002);  // takes the form without tensor cores
    CHECK(device->workspace(attention) == planned_bytes);
  }
}

TEST_CASE("workspace survey: finds the largest workspace without touching a tensor") {
  for (const std::string& name : device_names()) {
    INFO("device " << name);
    const auto device = open_device(name);
    WorkspaceSurvey survey(*device);
    CHECK(survey.bytes() == 0);
    CHECK(survey.info().name == name);
    const Tensor x = planned(DType::f32, {3, 5});
    survey.run(GeluForward{x, x});
    CHECK(survey.bytes() == 0);
    const RmsNormBackward small = planned_norm(20, 8), large = planned_norm(3000, 40);
    survey.run(small);
    CHECK(survey.bytes() == device->workspace(small));
    survey.run(large);
    survey.run(small);
    CHECK(survey.bytes() == device->workspace(large));
    CHECK(device->workspace(large) > device->workspace(small));
    CHECK(survey.workspace(small) == device->workspace(small));
    survey.set_zero(x.data, x.bytes());
    survey.copy(x.data, x.data, x.bytes());
    survey.upload(x.data, x.data, x.bytes());
    survey.download(x.data, x.data, x.bytes());
    survey.synchronize();
    CHECK_THROWS_WITH(survey.run(GeluForward{x, planned(DType::f32, {3, 4})}),
                      "gelu_forward: out [3, 5] f32: expected shape [3, 4] like x");
    CHECK_THROWS_AS(survey.allocate(1), std::logic_error);
  }
}

namespace {
// Cpu devices each of which does one thing wrong.
class TellsTooLittle final : public CpuDevice {
 public:
  using CpuDevice::workspace;
  std::size_t workspace(const RmsNormBackward& op) const override { return CpuDevice::workspace(op) - 4; }
};
class IgnoresItsWorkspace final : public CpuDevice {
 public:
  WorkspaceMemory use_workspace(WorkspaceMemory) override { return {}; }
};
class GivesOtherResults final : public CpuDevice {
 protected:
  using CpuDevice::launch;
  void launch(const RmsNormBackward& op) override {
    CpuDevice::launch(op);
    op.dweight.as<float>()[0] += static_cast<float>(++launches_);
  }

 private:
  int launches_ = 0;
};

class ChangesAnInput final : public CpuDevice {
 protected:
  using CpuDevice::launch;
  void launch(const RmsNormBackward& op) override {
    CpuDevice::launch(op);
    op.rstd.as<float>()[op.rstd.elements() - 1] = 1;
  }
};

template <class Device>
std::string complaint_about() {
  TestedDevice device(std::make_unique<Device>());
  const NormCall call(device);
  try {
    device.run(call.op());
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}
}  // namespace

TEST_CASE("tested device: notices a workspace that is too small, not used, or changes the results") {
  CHECK(complaint_about<CpuDevice>() == "");
  CHECK(complaint_about<TellsTooLittle>() == "rmsnorm_backward: written outside its workspace");
  CHECK(complaint_about<IgnoresItsWorkspace>() == "rmsnorm_backward: in a workspace that is too small: ''");
#ifndef __SANITIZE_ADDRESS__
  CHECK(complaint_about<GivesOtherResults>() ==
        "rmsnorm_backward: another result than without a given workspace");
  CHECK(complaint_about<ChangesAnInput>() == "rstd of rmsnorm_backward changes, but is not called written");
#endif
}
