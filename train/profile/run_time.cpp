#include "train/profile/run_time.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "train/model/model_parameters.h"
#include "train/speed/throughput.h"

namespace goat {

namespace {
namespace fs = std::filesystem;
using Json = nlohmann::json;

// The number of that name, or 0.
double number(const Json& json, const char* name) {
  if (!json.is_object() || !json.contains(name) || !json[name].is_number()) return 0;
  return json[name].get<double>();
}

bool same_model(double flops, double wanted) { return std::abs(flops - wanted) <= 1e-9 * wanted; }

std::optional<ExpectedSpeed> from_summary(const fs::path& run, double flops_per_token) {
  std::ifstream file(run / "summary.json");
  const Json summary = Json::parse(file, nullptr, false);
  const double speed = number(summary, "tokens_per_second");
  if (speed <= 0 || !same_model(number(summary, "flops_per_token"), flops_per_token)) return std::nullopt;
  std::string device;
  if (summary.contains("device_description") && summary["device_description"].is_string())
    device = " on " + summary["device_description"].get<std::string>();
  return ExpectedSpeed{speed, "measured by the run in " + run.string() + device};
}

std::optional<ExpectedSpeed> from_metrics(const fs::path& run, double flops_per_token) {
  std::ifstream file(run / "metrics.jsonl");
  std::vector<double> speeds;
  for (std::string line; std::getline(file, line);) {
    const Json step = Json::parse(line, nullptr, false);
    const double speed = number(step, "tokens_per_second");
    if (speed > 0 && number(step, "step") > warm_up_steps &&
        same_model(number(step, "flops_per_second") / speed, flops_per_token))
      speeds.push_back(speed);
  }
  if (speeds.empty()) return std::nullopt;
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  return ExpectedSpeed{*middle, "measured by the run in " + run.string() + ", so far"};
}
}  // namespace

std::optional<ExpectedSpeed> expected_speed(const Config& config, Arithmetic arithmetic,
                                            const DeviceInfo& device, const fs::path& run_folder,
                                            const SpeedOptions& options) {
  if (options.tokens_per_second > 0) return ExpectedSpeed{options.tokens_per_second, "--tokens-per-second"};
  const double flops = flops_per_token(config);
  if (const auto measured = from_summary(run_folder, flops)) return measured;
  if (const auto measured = from_metrics(run_folder, flops)) return measured;
  const std::optional<Peak> peak = peak_of(arithmetic, device, options.peak_tflops);
  if (!peak) return std::nullopt;
  char source[160];
  std::snprintf(source, sizeof source, "assumed, not measured: MFU %.0f%% of %s, %s", 100 * assumed_mfu,
                flops_text(peak->flops_per_second).c_str(), peak->source.c_str());
  return ExpectedSpeed{assumed_mfu * peak->flops_per_second / flops, source};
}

}  // namespace goat
