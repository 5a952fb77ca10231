#include "train/profile/chrome_trace.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "train/files/files.h"

namespace goat {

namespace {
constexpr int device_row = 1, host_row = 2;

std::string row_name(int row, const std::string& name) {
  return nlohmann::json{
      {"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", row}, {"args", {{"name", name}}}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A slice from `start` on, in microseconds.
std::string slice(int row, const TimedCall& call, double start, double seconds) {
  char times[96];
  std::snprintf(times, sizeof times, R"(,"ph":"X","pid":1,"tid":%d,"ts":%.3f,"dur":%.3f)", row, 1e6 * start,
                1e6 * seconds);
  std::string text = R"({"name":)" + nlohmann::json(call.name).dump() + times;
  if (row == device_row && call.kind == TimedCall::Kind::operation)
    text += R"(,"args":)" + nlohmann::json{{"flops", call.work.flops}, {"bytes", call.work.bytes}}.dump();
  return text + "}";
}
}  // namespace

void write_chrome_trace(const std::filesystem::path& path, std::span<const TimedCall> calls,
                        const std::string& device) {
  FileWriter file(path);
  file.write(R"({"displayTimeUnit":"ms","traceEvents":[)"
             "\n" +
             row_name(device_row, "device: " + device) + ",\n" + row_name(host_row, "host calls"));
  for (const TimedCall& call : calls) {
    file.write(",\n" + slice(host_row, call, call.host_start, call.host_seconds));
    if (call.kind != TimedCall::Kind::host)
      file.write(",\n" + slice(device_row, call, call.device_start, call.device_seconds));
  }
  file.write("\n]}\n");
  file.commit();
}

}  // namespace goat
