// The time line of a profile as a file of trace events, which chrome://tracing and ui.perfetto.dev open.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "train/profile/timed_device.h"

namespace goat {

// Two rows: the work of the device, one call beside the other, so that a gap is time in which the device had
// nothing to do; and the calls on the host, inside their ranges. Throws std::runtime_error.
void write_chrome_trace(const std::filesystem::path& path, std::span<const TimedCall> calls,
                        const std::string& device);

}  // namespace goat
