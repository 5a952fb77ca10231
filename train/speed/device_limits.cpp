#include "train/speed/device_limits.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "train/model/model_parameters.h"

namespace goat {

namespace {
struct Row {
  std::initializer_list<std::string_view> names;  // as CUDA gives them, without "NVIDIA "
  double bf16, tf32, fp32, terabytes;             // TFLOP/s, TB/s
};

// From the vendor's data sheets and, for GeForce, its architecture white papers. Figures with sparsity are
// halved. GeForce multiplies bf16 at half its rate where the sums are fp32, as here.
const Row table[] = {
    {{"A100-SXM4-40GB", "A100-PCIE-40GB"}, 312, 156, 19.5, 1.555},
    {{"A100-SXM4-80GB"}, 312, 156, 19.5, 2.039},
    {{"A100 80GB PCIe", "A100-PCIE-80GB"}, 312, 156, 19.5, 1.935},
    {{"H100 80GB HBM3"}, 989.4, 494.7, 66.9, 3.35},  // SXM
    {{"H100 PCIe"}, 756, 378, 51, 2.0},
    {{"H100 NVL"}, 835.5, 417.5, 60, 3.9},
    {{"H200"}, 989.4, 494.7, 66.9, 4.8},
    {{"H200 NVL"}, 835.5, 417.5, 60, 4.8},
    {{"B200"}, 2250, 1125, 75, 8.0},
    {{"L40S"}, 362, 183, 91.6, 0.864},
    {{"GeForce RTX 3090"}, 71, 35.6, 35.6, 0.936},
    {{"GeForce RTX 4090"}, 165.2, 82.6, 82.6, 1.008},
    {{"GeForce RTX 5090"}, 209.5, 104.8, 104.8, 1.792},
};

// The description begins with the GPU's name: "NVIDIA H100 PCIe, 114 SMs, compute capability 9.0".
std::string gpu_name(const DeviceInfo& device) {
  return device.description.substr(0, device.description.find(','));
}
}  // namespace

Arithmetic arithmetic_of(const Config& config, const Device& device) {
  if (model_dtype(config, device) == DType::bf16 || config.model.precision == "bf16") return Arithmetic::bf16;
  const bool tf32 = config.model.tf32 == "all" && device.info().name != "cpu";
  return tf32 ? Arithmetic::tf32 : Arithmetic::fp32;
}

const char* name_of(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::bf16 ? "bf16" : arithmetic == Arithmetic::tf32 ? "TF32" : "fp32";
}

double DeviceLimits::flops_per_second(Arithmetic arithmetic) const {
  return arithmetic == Arithmetic::bf16 ? bf16 : arithmetic == Arithmetic::tf32 ? tf32 : fp32;
}

// A name must match whole: "GeForce RTX 4090 Laptop GPU" and "H100 80GB HBM3 MIG 1g.10gb" are other devices.
std::optional<DeviceLimits> find_limits(const DeviceInfo& device) {
  if (device.name != "cuda") return std::nullopt;
  const std::string full = gpu_name(device), vendor = "NVIDIA ";
  const std::string name = full.starts_with(vendor) ? full.substr(vendor.size()) : full;
  for (const Row& row : table)
    if (std::ranges::count(row.names, name))
      return DeviceLimits{row.bf16 * 1e12, row.tf32 * 1e12, row.fp32 * 1e12, row.terabytes * 1e12};
  return std::nullopt;
}

std::optional<Peak> peak_of(Arithmetic arithmetic, const DeviceInfo& device, double given_tflops) {
  if (given_tflops > 0) return Peak{given_tflops * 1e12, "--peak-tflops"};
  const std::optional<DeviceLimits> limits = find_limits(device);
  if (!limits || arithmetic == Arithmetic::fp32) return std::nullopt;
  return Peak{limits->flops_per_second(arithmetic),
              std::string(name_of(arithmetic)) + " peak of " + gpu_name(device)};
}

}  // namespace goat
