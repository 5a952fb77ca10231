// The functions by which other code opens the two builds of kernels/cuda without including their headers.
#pragma once

#include <memory>

#include "kernels/device.h"
#include "kernels/device_choice.h"

namespace goat::on_cuda {
GpuSearch find_gpu();
std::unique_ptr<Device> open_device();
}  // namespace goat::on_cuda

namespace goat::on_simt {
std::unique_ptr<Device> open_device();
}  // namespace goat::on_simt
