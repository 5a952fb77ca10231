// Opens the communicator of devices that exchange by NCCL: several GPUs, or ranks of the simulated GPU with a
// simulated NCCL. Beside what communicator.h says: ranks that make different calls may wait for ever, except
// on the simulated GPU, which finds that; a rank that waits does so without a time limit.
#pragma once

#include <memory>
#include <string>

#include "kernels/communicator.h"
#include "kernels/device.h"

namespace goat {

// Whether `device` ("cuda", "simt" ...) has such a communicator. Without it, these functions throw
// std::invalid_argument, whose message says what to install where this build lacks NCCL.
bool has_communicator(const std::string& device);

// The version of NCCL as it was found: "2.28.9". This, communicator_id() and open_communicator() load the
// library, and throw std::runtime_error if it is not there.
std::string communicator_version(const std::string& device);

// A new id, for one communicator. One rank asks, and tells the others; it must outlive the opening.
std::string communicator_id(const std::string& device);

// Returns when all ranks have come. For cuda, of the GPU that open_device() has chosen. With `sums`, NCCL
// adds in the same way in every call (NCCL_ALGO=^NVLS), unless NCCL_ALGO is set. Throws std::runtime_error
// with NCCL's words.
std::unique_ptr<Communicator> open_communicator(const std::string& device, const CommunicatorSetup& setup);

// Removes the names in /dev/shm that ranks which ended while they opened it may have left. The simulated NCCL
// has such names, and each begins with "goat-" and goes on with digits.
void remove_shared_names(const std::string& device, const std::string& id) noexcept;

// One line for --version: NCCL as this build knows it, and as this machine has it.
std::string nccl_text();

}  // namespace goat
