// How long a run will take.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/device.h"
#include "train/config/config.h"
#include "train/speed/device_limits.h"

namespace goat {

// What the command line says of speed; 0: nothing.
struct SpeedOptions {
  double tokens_per_second = 0, peak_tflops = 0;
};

struct ExpectedSpeed {
  double tokens_per_second = 0;
  std::string source;  // "measured by the run in runs/c4 on cuda (NVIDIA H100 ..)"
};

// Where MFU has to be assumed: within reach of a GPT on one GPU of any size, and not measured.
inline constexpr double assumed_mfu = 0.4;

// The first of these that there is: --tokens-per-second, the speed of a run of the same FLOPs a token in
// `run_folder`, and `assumed_mfu` of the peak (peak_of). A run that has ended gives the speed of its
// summary.json, another one the median of the steps in metrics.jsonl.
std::optional<ExpectedSpeed> expected_speed(const Config& config, Arithmetic arithmetic,
                                            const DeviceInfo& device, const std::filesystem::path& run_folder,
                                            const SpeedOptions& options);

}  // namespace goat
