#include "kernels/device_lost.h"

#include <algorithm>

namespace goat {

namespace {
// After these, CUDA's documentation says, the process must end. Those of the first group are faults of the
// hardware, its connection or the driver; those of the second are faults of a kernel, or memory that went bad
// without being noticed. The last is a limit of the driver.
constexpr const char* hardware_faults[] = {"cudaErrorECCUncorrectable",
                                           "cudaErrorNvlinkUncorrectable",
                                           "cudaErrorHardwareStackError",
                                           "cudaErrorContained",
                                           "cudaErrorUnknown",
                                           "cudaErrorNoDevice",
                                           "cudaErrorDeviceUninitialized",
                                           "cudaErrorSystemNotReady"};
constexpr const char* kernel_faults[] = {"cudaErrorIllegalAddress",      "cudaErrorAssert",
                                         "cudaErrorIllegalInstruction",  "cudaErrorMisalignedAddress",
                                         "cudaErrorInvalidAddressSpace", "cudaErrorInvalidPc",
                                         "cudaErrorLaunchFailure",       "cudaErrorTensorMemoryLeak"};
constexpr const char* time_limit = "cudaErrorLaunchTimeout";
}  // namespace

void throw_cuda_error(const std::string& name, const std::string& words, const std::string& place) {
  const std::string error = "CUDA: " + words + " (" + name + ") at " + place;
  const bool hardware = std::ranges::count(hardware_faults, name) > 0;
  if (name == time_limit)
    throw DeviceLost("the GPU was lost. " + error +
                     "\nThe driver ends kernels that run for seconds on a GPU which also draws a screen; use "
                     "a GPU without a screen, or a smaller train.micro_batch.");
  if (!hardware && std::ranges::count(kernel_faults, name) == 0) throw std::runtime_error(error);
  throw DeviceLost(
      "the GPU was lost. " + error + "\n" +
      (hardware ? "This is a fault of the GPU, its connection or its driver. "
                : "This is a fault of a kernel, or of the GPU's memory. ") +
      "`dmesg | grep -i -e xid -e nvrm` has the driver's account of it (Xid 79: fallen off the bus; 48, 63, "
      "64, 94, 95: memory errors), `nvidia-smi -q -d ECC` counts memory errors, and `nvidia-smi` tells "
      "whether "
      "the GPU still answers.");
}

}  // namespace goat
