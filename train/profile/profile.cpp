#include "train/profile/profile.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "train/config/counted.h"
#include "train/files/files.h"
#include "train/files/json_file.h"
#include "train/model/model_parameters.h"
#include "train/profile/chrome_trace.h"
#include "train/profile/profile_report.h"
#include "train/speed/throughput.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

namespace goat {

namespace {
struct KnownLimits {
  std::optional<MachineLimits> limits;
  std::string source;
};

// By the GPU's name, or measured where the device is the cpu.
KnownLimits limits_of(Arithmetic arithmetic, const DeviceInfo& device, double peak_tflops) {
  KnownLimits known;
  if (device.name == "cpu") {
    known = {measure_machine(wall_clock), "measured: a large sgemm, a += s b"};
  } else if (const auto gpu = find_limits(device)) {
    known = {MachineLimits{gpu->flops_per_second(arithmetic), gpu->bytes_per_second},
             std::string("data sheet, ") + name_of(arithmetic)};
  }
  if (known.limits && peak_tflops > 0) {
    known.limits->flops_per_second = peak_tflops * 1e12;
    known.source += "; --peak-tflops";
  }
  return known;
}

struct Measured {
  std::vector<TimedCall> calls;
  double seconds = 0;  // wall time of all steps
};

// Nothing waits for a call, only for the last step.
Measured measure(Trainer& trainer, TimedDevice& device, std::int64_t steps) {
  device.start();
  for (std::int64_t step = 0; step < warm_up_steps; ++step) trainer.step();
  const std::size_t calls = device.take().size();
  device.start(calls / warm_up_steps * static_cast<std::size_t>(steps + 1));
  Measured measured;
  const double start = wall_clock();
  for (std::int64_t step = 1; step <= steps; ++step) {
    device.enter("step " + std::to_string(step));
    trainer.step();
    device.leave();
  }
  device.synchronize();
  measured.seconds = wall_clock() - start;
  measured.calls = device.take();
  return measured;
}

void print_limits(const KnownLimits& known) {
  if (known.limits)
    std::printf("limits      %s, %.1f GB/s (%s)\n", flops_text(known.limits->flops_per_second).c_str(),
                1e-9 * known.limits->bytes_per_second, known.source.c_str());
  else
    std::printf("limits      not known for this device\n");
}

// The trainer's schedule must reach as far as the profile.
Config lengthened(Config config, std::int64_t steps) {
  if (config.steps() < steps) config.train.steps = steps, config.train.tokens = 0;
  return config;
}

nlohmann::json json_of(const ProfileReport& report, const Config& config, const Device& device,
                       const KnownLimits& known, const SpeedScale& scale) {
  const auto tokens = static_cast<double>(config.tokens_per_step());
  nlohmann::json all = {{"device", device.info().name},
                        {"device_description", device.info().description},
                        {"arithmetic", name_of(arithmetic_of(config, device))},
                        {"tokens_per_step", tokens},
                        {"micro_batches", config.train.batch / config.micro_batch()},
                        {"flops_per_token", scale.flops_per_token},
                        {"tokens_per_second", tokens / report.step_seconds}};
  if (const auto mfu = scale.mfu(tokens / report.step_seconds)) all["mfu"] = *mfu;
  if (known.limits)
    all["limits"] = {{"flops_per_second", known.limits->flops_per_second},
                     {"bytes_per_second", known.limits->bytes_per_second},
                     {"source", known.source}};
  all.update(json_of(report));
  return all;
}
}  // namespace

void profile_steps(const Config& asked, Device& device, std::int64_t steps, double peak_tflops,
                   const std::filesystem::path& folder) {
  const Config config = lengthened(asked, warm_up_steps + steps);
  const auto training = open_training_source(config);
  TimedDevice timed(device);
  Trainer trainer(config, timed, *training, nullptr);
  trainer.require_memory();
  trainer.allocate();
  trainer.initialize();
  std::filesystem::create_directories(folder);

  const DeviceInfo& info = device.info();
  const Arithmetic arithmetic = arithmetic_of(config, device);
  const KnownLimits known = limits_of(arithmetic, info, peak_tflops);
  std::printf("device      %s: %s\nprofile     %s after %s of warm-up, %s in %s\n", info.name.c_str(),
              info.description.c_str(), counted(steps, "step").c_str(),
              counted(warm_up_steps, "step").c_str(), counted(config.tokens_per_step(), "token").c_str(),
              counted(config.train.batch / config.micro_batch(), "micro-batch").c_str());
  print_limits(known);
  std::fflush(stdout);

  const Measured measured = measure(trainer, timed, steps);
  const ProfileReport report =
      report_of(measured.calls, steps, measured.seconds, known.limits, info.name == "cpu");
  const SpeedScale scale{flops_per_token(config), peak_of(arithmetic, info, peak_tflops)};
  std::printf("\n");
  print_report(report);
  std::printf("\n%s\n",
              scale.text(static_cast<double>(config.tokens_per_step()) / report.step_seconds).c_str());
  write_json(folder / "operations.json", json_of(report, config, device, known, scale));
  write_chrome_trace(folder / "trace.json", measured.calls, info.description);
  write_file_atomically(folder / "config.toml", to_toml(asked));
  std::printf(
      "written     %s: operations.json, trace.json (chrome://tracing, ui.perfetto.dev), config.toml\n",
      folder.c_str());
}

}  // namespace goat
