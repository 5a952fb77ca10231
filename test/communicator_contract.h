// What a communicator of several GPUs promises (kernels/communicator.h), checked by each of its ranks: on the
// simulated GPU by test_nccl_communicator.cpp, on GPUs by programs/nccl_ranks.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/communicator.h"
#include "kernels/device.h"

namespace goat::test {

// All ranks call these together with the same seed and counts. Each returns what is wrong; empty: nothing.

// Sums of random numbers, of every dtype and of odd sizes, within the rounding of any order.
std::string check_sums(Device& device, Communicator& ranks, std::uint64_t seed, int count);

// Steps as training makes them: what is sent is computed by `compute`, exchanged on `exchange`, which may be
// the same device or a second stream of it, and used by `compute`, which then writes over what was sent.
std::string check_steps(Device& compute, Device& exchange, Communicator& ranks, int count);

// Splits in two levels, or in two halves of reversed order, whose parts exchange in turn with the whole.
std::string check_splits(Device& device, Communicator& ranks, std::uint64_t seed, int count);

// Calls are recorded and replayed with other inputs.
std::string check_capture(Device& device, Communicator& ranks);

// completed() never goes back, never counts a call that has not begun, and counts all after a wait for the
// device. With `late` the device runs nothing before it is waited for.
std::string check_count(Device& device, Communicator& ranks, int count, bool late);

// Arguments that are wrong on all ranks. The communicator cannot be used afterwards.
std::string check_refusals(Device& device, Communicator& ranks);

}  // namespace goat::test
