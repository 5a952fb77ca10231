// What a GPU can do at most, by its name.
#pragma once

#include <optional>
#include <string>

#include "kernels/device.h"
#include "train/config/config.h"

namespace goat {

// What the matrix products of a run compute in.
enum class Arithmetic { bf16, tf32, fp32 };
Arithmetic arithmetic_of(const Config& config, const Device& device);
const char* name_of(Arithmetic arithmetic);

// The vendor's figures. Matrix products are dense and sum in fp32; fp32 itself is without tensor cores.
struct DeviceLimits {
  double bf16, tf32, fp32;  // FLOP/s
  double bytes_per_second;  // of device memory
  double flops_per_second(Arithmetic arithmetic) const;
};

// nullopt for a device that the table does not have, or has only in a part (MIG) or another form (laptop).
std::optional<DeviceLimits> find_limits(const DeviceInfo& device);

// What the model FLOPs a second of a run are divided by: its MFU.
struct Peak {
  double flops_per_second = 0;
  std::string source;  // "bf16 peak of NVIDIA H100 PCIe"
};

// `given_tflops` is the value of --peak-tflops, or 0. Without it, only runs in bf16 or TF32 on a GPU of the
// table have a peak: fp32 does not use the tensor cores that MFU is about.
std::optional<Peak> peak_of(Arithmetic arithmetic, const DeviceInfo& device, double given_tflops);

}  // namespace goat
