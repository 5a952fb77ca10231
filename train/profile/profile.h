// `--profile N`: where the time of a training step goes.
#pragma once

#include <cstdint>
#include <filesystem>

#include "kernels/device.h"
#include "train/config/config.h"

namespace goat {

// Trains the model of the config from its initial weights for the warm-up steps and `steps` more, and prints
// what each operation takes beside its limit. Writes operations.json, trace.json and config.toml into
// `folder`. Nothing of a run is read or written. `peak_tflops` is the value of --peak-tflops, or 0. Throws
// DataError, and what the device throws.
void profile_steps(const Config& config, Device& device, std::int64_t steps, double peak_tflops,
                   const std::filesystem::path& folder);

}  // namespace goat
