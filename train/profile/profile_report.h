// What a profile says: the time of each operation beside its limit.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/profile/machine_limits.h"
#include "train/profile/timed_device.h"

namespace goat {

// An operation, or a layer's matrix product. All figures are those of one step.
struct ProfileRow {
  std::string name;
  double calls = 0;
  double seconds = 0;  // on the device
  Work work;
  std::optional<double> limit;  // seconds that the device takes at least; nullopt if its limits are not known
};

struct ProfileReport {
  std::int64_t steps = 0;
  double step_seconds = 0;       // wall time of a step
  double device_seconds = 0;     // the sum of the rows
  std::vector<ProfileRow> rows;  // the longest first
};

// The steps' wall time is `seconds`, together. Copies between host and device get a limit only where
// `host_is_device`, because they go over another bus elsewhere.
ProfileReport report_of(std::span<const TimedCall> calls, std::int64_t steps, double seconds,
                        const std::optional<MachineLimits>& limits, bool host_is_device);

void print_report(const ProfileReport& report);
nlohmann::json json_of(const ProfileReport& report);

}  // namespace goat
