#include "train/profile/profile_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace goat {

namespace {
std::optional<double> limit_of(const Total& total, const std::optional<MachineLimits>& limits,
                               bool host_is_device) {
  if (!limits || (total.kind == TimedCall::Kind::host_copy && !host_is_device)) return std::nullopt;
  return limits->seconds(total.work.flops, total.work.bytes);
}

// A right-aligned cell; "-" stands for a rate of nothing.
std::string cell(int width, int digits, double value, bool known = true) {
  char text[32];
  if (known)
    std::snprintf(text, sizeof text, "%*.*f", width, digits, value);
  else
    std::snprintf(text, sizeof text, "%*s", width, "-");
  return text;
}

void print_row(const ProfileRow& row, double step_seconds) {
  const double limit = row.limit.value_or(0);
  std::printf("%-38s %s %s %s %s %s %s %s\n", row.name.c_str(), cell(8, 1, row.calls, row.calls > 0).c_str(),
              cell(10, 3, 1e3 * row.seconds).c_str(), cell(6, 1, 100 * row.seconds / step_seconds).c_str(),
              cell(10, 3, 1e3 * limit, row.limit.has_value()).c_str(),
              cell(6, 0, 100 * limit / row.seconds, row.limit && row.seconds > 0).c_str(),
              cell(9, 0, 1e-9 * row.work.flops / row.seconds, row.work.flops > 0 && row.seconds > 0).c_str(),
              cell(9, 1, 1e-9 * row.work.bytes / row.seconds, row.work.bytes > 0 && row.seconds > 0).c_str());
}
}  // namespace

ProfileReport report_of(std::span<const TimedCall> calls, std::int64_t steps, double seconds,
                        const std::optional<MachineLimits>& limits, bool host_is_device) {
  const auto each = static_cast<double>(steps);
  ProfileReport report{steps, seconds / each, 0, {}};
  for (auto& [name, total] : totals_of(calls, &TimedCall::device_seconds)) {
    ProfileRow row{name,
                   static_cast<double>(total.calls) / each,
                   total.seconds / each,
                   {total.work.flops / each, total.work.bytes / each},
                   limit_of(total, limits, host_is_device)};
    if (row.limit) *row.limit /= each;
    report.device_seconds += row.seconds;
    report.rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(report.rows, std::ranges::greater{}, &ProfileRow::seconds);
  return report;
}

void print_report(const ProfileReport& report) {
  std::printf("%-38s %8s %10s %6s %10s %6s %9s %9s\n", "of a step", "calls", "ms", "%", "limit ms", "of it %",
              "GFLOP/s", "GB/s");
  for (const ProfileRow& row : report.rows) print_row(row, report.step_seconds);
  const auto line = [&](const char* name, double seconds) {
    print_row({name, 0, seconds, {}, {}}, report.step_seconds);
  };
  line("the device has nothing to do", std::max(0.0, report.step_seconds - report.device_seconds));
  line("step", report.step_seconds);
}

nlohmann::json json_of(const ProfileReport& report) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ProfileRow& row : report.rows) {
    rows.push_back({{"name", row.name},
                    {"calls", row.calls},
                    {"seconds", row.seconds},
                    {"flops", row.work.flops},
                    {"bytes", row.work.bytes}});
    if (row.limit) rows.back()["limit_seconds"] = *row.limit;
  }
  return {{"steps", report.steps},
          {"step_seconds", report.step_seconds},
          {"device_seconds", report.device_seconds},
          {"operations", rows}};
}

}  // namespace goat
