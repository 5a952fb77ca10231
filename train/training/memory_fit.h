// Which micro-batch and model.recompute fit into a device's memory.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/device.h"
#include "train/config/config.h"

namespace goat {

// The largest divisor of train.batch with which a training run needs at most `bytes`; 0 if one sequence needs
// more.
std::int64_t largest_micro_batch(Config config, const Device& device, std::size_t bytes);

// What a run takes of the device's memory if train.micro_batch = 0: all but 1/32, which is left to recorded
// graphs and to the libraries.
std::size_t usable_memory(const Device& device);

// Replaces train.micro_batch = 0: by `before` (0: none) if it divides the batch and fits, otherwise by the
// largest that fits, or 1 if none does.
Config with_micro_batch(Config config, const Device& device, std::int64_t before = 0);

// A sentence without its full stop: the setting nearest to `config` that needs at most `bytes`.
std::string setting_that_fits(const Config& config, const Device& device, std::size_t bytes);

}  // namespace goat
