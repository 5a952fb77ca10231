// The functions by which other code opens the two builds of kernels/cuda without including their headers.
#pragma once

#include <memory>
#include <string>

#include "kernels/communicator.h"
#include "kernels/device.h"
#include "kernels/device_choice.h"

namespace goat::on_cuda {
// Looks at the GPU of the rank in this place and makes it this process's. Throws what gpu_of() does.
GpuSearch find_gpu(const DevicePlace& place);
std::unique_ptr<Device> open_device();

// NCCL: see kernels/open/open_communicator.h. These load the library, and throw std::runtime_error if it is
// not there.
std::string communicator_version();
std::string communicator_id();
std::unique_ptr<Communicator> open_communicator(const CommunicatorSetup& setup);
std::string nccl_of_build();         // the version whose headers this build has
std::string nccl_of_this_machine();  // the version and file of the library, or why there is none
}  // namespace goat::on_cuda

namespace goat::on_simt {
std::unique_ptr<Device> open_device();
std::string communicator_version();
std::string communicator_id();
std::unique_ptr<Communicator> open_communicator(const CommunicatorSetup& setup);
void remove_shared_names(const std::string& id) noexcept;
}  // namespace goat::on_simt
