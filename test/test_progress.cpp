// The lines a person watches: mean loss, speed and the time left; and the learning-rate schedule they show.

#include "train/speed/progress.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>

#include "kernels/cpu/cpu_device.h"
#include "test/catch.h"
#include "test/temporary_folder.h"
#include "train/training/schedule.h"

using namespace goat;

namespace {

// What `action` prints, with neither stdout nor stderr a terminal.
std::string printed(const std::function<void()>& action) {
  const goat::test::TemporaryFolder folder;
  const auto path = folder.path() / "printed";
  std::fflush(nullptr);
  const int out = ::dup(STDOUT_FILENO), err = ::dup(STDERR_FILENO);
  std::FILE* file = std::fopen(path.c_str(), "w");
  ::dup2(::fileno(file), STDOUT_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  action();
  std::fflush(nullptr);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::close(out);
  ::close(err);
  std::fclose(file);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// One step of 1,000 tokens.
StepRecord record(std::int64_t step, double loss, double seconds) {
  StepRecord result;
  result.step = step;
  result.tokens = 1000;
  result.loss = loss;
  result.learning_rate = 0.01;
  result.grad_norm = 0.5;
  result.seconds = seconds;
  return result;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("progress: the time left is the mean of the steps after the warm-up, times the steps left") {
  const auto lines = lines_of(printed([] {
    Progress progress(100, 10, {1e6});
    progress.report(record(1, 4, 1000));  // slow, and left out
    progress.report(record(2, 3, 500));   // this too
    for (std::int64_t step = 3; step <= 99; ++step) progress.report(record(step, 3, step <= 10 ? 1 : 3));
    progress.report(record(100, 2, 3));
  }));
  REQUIRE(lines.size() == 11);
  CHECK_THAT(lines[0], ContainsSubstring("1/100   1%") && !ContainsSubstring("ETA"));
  CHECK_THAT(lines[1], ContainsSubstring("10/100  10%") && ContainsSubstring("ETA 1 min 30 s"));
  // (8 x 1 s + 10 x 3 s) / 18 x 80 steps = 168.9 s
  CHECK_THAT(lines[2], ContainsSubstring("20/100  20%") && ContainsSubstring("ETA 2 min 49 s"));
  CHECK_THAT(lines[10], ContainsSubstring("100/100 100%") && !ContainsSubstring("ETA"));
}

TEST_CASE("progress: a resumed run's time left counts its own steps, without its own warm-up") {
  const auto lines = lines_of(printed([] {
    Progress progress(100, 10, {1e6});
    progress.report(record(51, 4, 1000));
    progress.report(record(52, 4, 1000));
    for (std::int64_t step = 53; step <= 60; ++step) progress.report(record(step, 3, 2));
  }));
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[1], ContainsSubstring("60/100  60%") && ContainsSubstring("ETA 1 min 20 s"));
}

TEST_CASE("progress: loss is the mean, speed that of the steps since the line before, without the warm-up") {
  const auto lines = lines_of(printed([] {
    Progress progress(20, 4, {2e6});
    progress.report(record(1, 8, 10));
    progress.report(record(2, 2, 10));
    for (std::int64_t step = 3; step <= 4; ++step)
      progress.report(record(step, static_cast<double>(step), 2));
    for (std::int64_t step = 5; step <= 8; ++step) progress.report(record(step, 1, 0.5));
  }));
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], ContainsSubstring("loss 8.0000") && ContainsSubstring("  warming up"));
  CHECK_THAT(lines[1], ContainsSubstring("loss 3.0000") && ContainsSubstring(" 500 tokens/s") &&
                           ContainsSubstring("1.0 GFLOP/s"));
  CHECK_THAT(lines[2], ContainsSubstring("loss 1.0000") && ContainsSubstring(" 2000 tokens/s"));
}

TEST_CASE("throughput: the first steps of a process count only as long as there are no others") {
  Throughput throughput;
  CHECK_FALSE(throughput.tokens_per_second());
  throughput.add(100, 10);
  throughput.add(100, 10);
  CHECK(throughput.steps() == 0);
  CHECK(throughput.tokens_per_second() == Approx(10));
  throughput.add(100, 1);
  throughput.add(300, 1);
  CHECK(throughput.steps() == warm_up_steps);
  CHECK(throughput.tokens_per_second() == Approx(200));
  CHECK(throughput.seconds_per_step() == Approx(1));
}

TEST_CASE("throughput: MFU is model FLOPs over the peak, and not shown without one") {
  const SpeedScale known{8e8, Peak{1e15, "given"}}, unknown{8e8};
  CHECK(known.mfu(500'000) == Approx(0.4));
  CHECK(known.text(500'000) == "500000 tokens/s  400.0 TFLOP/s  MFU 40.0%");
  CHECK_FALSE(unknown.mfu(500'000));
  CHECK(unknown.text(1000) == "1000 tokens/s  800.0 GFLOP/s");
}

namespace {
DeviceInfo gpu(const std::string& name) { return {"cuda", name + ", 132 SMs, compute capability 9.0"}; }

// Nothing of a GPU but the name.
class Gpu final : public CpuDevice {
 public:
  const DeviceInfo& info() const override { return info_; }

 private:
  DeviceInfo info_ = gpu("NVIDIA L40S");
};

Config config_in(const std::string& precision, const std::string& tf32) {
  Config config;
  config.model.precision = precision;
  config.model.tf32 = tf32;
  return config;
}
}  // namespace

TEST_CASE("device limits: the dense bf16 peak of each GPU of the table, by CUDA's name for it") {
  const std::vector<std::pair<const char*, double>> tflops = {{"NVIDIA A100-SXM4-40GB", 312},
                                                              {"NVIDIA A100-SXM4-80GB", 312},
                                                              {"NVIDIA A100 80GB PCIe", 312},
                                                              {"NVIDIA H100 80GB HBM3", 989.4},
                                                              {"NVIDIA H100 PCIe", 756},
                                                              {"NVIDIA H100 NVL", 835.5},
                                                              {"NVIDIA H200", 989.4},
                                                              {"NVIDIA B200", 2250},
                                                              {"NVIDIA L40S", 362},
                                                              {"NVIDIA GeForce RTX 3090", 71},
                                                              {"NVIDIA GeForce RTX 4090", 165.2},
                                                              {"NVIDIA GeForce RTX 5090", 209.5},
                                                              {"GeForce RTX 3090", 71}};
  for (const auto& [name, expected] : tflops) {
    INFO(name);
    const auto peak = peak_of(Arithmetic::bf16, gpu(name), 0);
    REQUIRE(peak);
    CHECK(peak->flops_per_second == Approx(expected * 1e12));
    CHECK_THAT(peak->source, ContainsSubstring(name) && ContainsSubstring("bf16"));
  }
}

TEST_CASE("device limits: no peak rather than a wrong one") {
  const DeviceInfo h100 = gpu("NVIDIA H100 80GB HBM3");
  for (const char* other : {"NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D",
                            "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100", "Tesla T4"})
    CHECK_FALSE(peak_of(Arithmetic::bf16, gpu(other), 0));
  for (const char* name : {"cpu", "simt"})
    CHECK_FALSE(peak_of(Arithmetic::bf16, {name, h100.description}, 0));
  CHECK_FALSE(peak_of(Arithmetic::fp32, h100, 0));
  CHECK(peak_of(Arithmetic::tf32, h100, 0)->flops_per_second == Approx(494.7e12));
  CHECK(peak_of(Arithmetic::fp32, h100, 60)->flops_per_second == Approx(60e12));
  CHECK(peak_of(Arithmetic::bf16, {"cpu", ""}, 2)->flops_per_second == Approx(2e12));
}

TEST_CASE("device limits: the arithmetic is that of the config, as far as the device has it") {
  const Gpu gpu;
  CHECK(arithmetic_of(config_in("bf16", "none"), gpu) == Arithmetic::bf16);
  CHECK(arithmetic_of(config_in("fp32", "none"), gpu) == Arithmetic::fp32);
  CHECK(arithmetic_of(config_in("fp32", "all"), gpu) == Arithmetic::tf32);
  CHECK(arithmetic_of(config_in("fp32", "all"), CpuDevice()) == Arithmetic::fp32);
}

TEST_CASE("progress: durations are whole seconds below an hour, minutes above") {
  CHECK(duration_text(0.4) == "0 s");
  CHECK(duration_text(59.4) == "59 s");
  CHECK(duration_text(59.6) == "1 min 00 s");
  CHECK(duration_text(185) == "3 min 05 s");
  CHECK(duration_text(3599) == "59 min 59 s");
  CHECK(duration_text(3600) == "1 h 00 min");
  CHECK(duration_text(3720 + 59) == "1 h 02 min");
  CHECK(duration_text(100 * 3600.0) == "100 h 00 min");
}

TEST_CASE("schedule: warms up from above zero to lr, then falls by a cosine that ends at min_lr") {
  Config::Train train;
  train.lr = 0.8;
  train.min_lr = 0.2;
  train.warmup = 4;
  const std::vector<double> warming = {0.2, 0.4, 0.6, 0.8};
  for (std::int64_t step = 0; step < 4; ++step)
    CHECK(learning_rate(train, step, 10) == Approx(warming[static_cast<std::size_t>(step)]));
  // (1 + cos(pi p)) / 2 for p = 1/6 .. 6/6
  const std::vector<double> share = {0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0};
  for (std::int64_t step = 4; step < 10; ++step)
    CHECK(learning_rate(train, step, 10) == Approx(0.2 + 0.6 * share[static_cast<std::size_t>(step - 4)]));
  train.warmup = 0;
  CHECK(learning_rate(train, 0, 1) == Approx(0.2));
  CHECK(learning_rate(train, 0, 2) == Approx(0.5));
}

TEST_CASE("schedule: wsd stays at lr and falls linearly in the last steps, to min_lr; constant stays") {
  Config::Train train;
  train.lr = 0.8;
  train.min_lr = 0.2;
  train.warmup = 2;
  const auto rates = [&](std::int64_t steps) {
    std::vector<double> all;
    for (std::int64_t step = 0; step < steps; ++step) all.push_back(learning_rate(train, step, steps));
    return all;
  };
  const auto check = [&](const std::vector<double>& want) {
    const std::vector<double> got = rates(std::ssize(want));
    for (std::size_t step = 0; step < want.size(); ++step) CHECK(got[step] == Approx(want[step]));
  };
  train.schedule = "wsd";
  train.decay_share = 0.4;
  check({0.4, 0.8, 0.8, 0.8, 0.8, 0.8, 0.65, 0.5, 0.35, 0.2});
  train.decay_share = 1;  // the warm-up is whole
  check({0.4, 0.8, 0.6, 0.4, 0.2});
  train.decay_share = 0;
  check({0.4, 0.8, 0.8, 0.8});
  train.schedule = "constant";
  check({0.4, 0.8, 0.8, 0.8});
}
