// Where the time of a step goes: calls timed by events, their limits, the trace, and hours from a speed.

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/cpu/cpu_device.h"
#include "test/catch.h"
#include "test/temporary_folder.h"
#include "train/files/files.h"
#include "train/model/model_parameters.h"
#include "train/profile/chrome_trace.h"
#include "train/profile/profile.h"
#include "train/profile/profile_report.h"
#include "train/profile/run_time.h"
#include "train/profile/timed_device.h"
#include "train/speed/throughput.h"

using namespace goat;
namespace fs = std::filesystem;

namespace {

struct QueuedEvent final : DeviceEvent {
  double time = -1;
};

// A device whose own clock is that of the work in its queue: an operation takes 3 s, the gap before it 1 s.
class QueuedDevice final : public CpuDevice {
 public:
  double now = 0;
  int synchronized = 0, waited = 0;

  void synchronize() override { ++synchronized; }
  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<QueuedEvent>(); }
  void record(DeviceEvent& event) override { dynamic_cast<QueuedEvent&>(event).time = now; }
  void wait(DeviceEvent&) override { ++waited; }
  double seconds_between(const DeviceEvent& first, const DeviceEvent& last) const override {
    return dynamic_cast<const QueuedEvent&>(last).time - dynamic_cast<const QueuedEvent&>(first).time;
  }

 protected:
  using CpuDevice::launch;
  void launch(const Fill& op) override {
    CpuDevice::launch(op);
    now += 3;
  }
};

struct Numbers {
  std::vector<float> values = std::vector<float>(64, 0.0f);
  Tensor tensor(const char* name, std::initializer_list<std::int64_t> shape) {
    Tensor tensor = Tensor::of<float>(values.data(), shape);
    tensor.name = name;
    return tensor;
  }
};

TimedCall call_of(const char* name, TimedCall::Kind kind, const Work& work, double seconds) {
  return {.kind = kind, .name = name, .work = work, .device_start = 1, .device_seconds = seconds};
}

nlohmann::json read_json(const fs::path& path) { return nlohmann::json::parse(read_small_file(path)); }

Config tiny(const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"model.width=16", "model.vocab=13", "prior.pos_rank=1", "prior.abs_rank=2",
                                  "data.seq_len=8", "train.batch=4",  "train.steps=2",    "train.warmup=1"};
  all.insert(all.end(), more.begin(), more.end());
  return load_config("copy_mixture", all);
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace

TEST_CASE("timed device: times are the device's own, gaps stay gaps, and no call is waited for") {
  QueuedDevice inner;
  TimedDevice device(inner);
  Numbers numbers;
  inner.now = 100;
  device.start();
  const int before = inner.synchronized;
  for (int i = 0; i < 3; ++i) {
    inner.now += 1;
    device.run(Fill{numbers.tensor("x", {64}), static_cast<float>(i)});
  }
  CHECK(inner.synchronized == before);
  CHECK(numbers.values[63] == 2);
  const std::vector<TimedCall> calls = device.take();
  REQUIRE(calls.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(calls[i].name == "fill");
    CHECK(calls[i].device_start == Approx(1 + 4 * static_cast<double>(i)));
    CHECK(calls[i].device_seconds == Approx(3));
    CHECK(calls[i].work.bytes == 256);
    CHECK(calls[i].host_start >= (i ? calls[i - 1].host_start + calls[i - 1].host_seconds : 0));
  }
  device.start(50);  // more events than calls so far
  device.run(Fill{numbers.tensor("x", {64}), 1});
  CHECK(device.take().at(0).device_seconds == Approx(3));
}

TEST_CASE("timed device: events, waits and host memory are the inner device's") {
  QueuedDevice inner;
  TimedDevice device(inner);
  const auto first = device.make_event(), last = device.make_event();
  device.record(*first);
  inner.now += 5;
  device.record(*last);
  CHECK(device.seconds_between(*first, *last) == Approx(5));
  device.start();
  device.wait(*last);
  CHECK(inner.waited == 1);
  device.synchronize();
  const std::vector<TimedCall> calls = device.take();
  REQUIRE(calls.size() == 2);
  CHECK(calls[0].name == "wait");
  CHECK(calls[1].name == "synchronize");
  for (const TimedCall& call : calls) CHECK(call.kind == TimedCall::Kind::host);
  CHECK(totals_of(calls, &TimedCall::device_seconds).empty());
  CHECK_FALSE(device.can_capture());
}

TEST_CASE("timed device: matrix products have their layer's name, whatever the block") {
  CpuDevice inner;
  TimedDevice device(inner);
  Numbers x, w, y;
  device.start();
  for (const char* weight : {"blocks.0.mlp.up.weight", "blocks.11.mlp.up.weight", "embedding.padded"})
    device.run(LinearForward{y.tensor("y", {2, 4}), x.tensor("x", {2, 8}), w.tensor(weight, {4, 8}), {}});
  const Totals totals = totals_of(device.take(), &TimedCall::host_seconds);
  REQUIRE(totals.size() == 2);
  CHECK(totals.at("linear_forward mlp.up").calls == 2);
  CHECK(totals.at("linear_forward mlp.up").work.flops == 2 * 2 * 2 * 4 * 8);
  CHECK(totals.at("linear_forward head").calls == 1);
}

TEST_CASE("profile: a step's rows, their limits, and what the device waited") {
  const MachineLimits limits{100, 10};
  using Kind = TimedCall::Kind;
  const std::vector<TimedCall> calls = {call_of("gemm", Kind::operation, {400, 10}, 5),  // 4 s of arithmetic
                                        call_of("gemm", Kind::operation, {400, 10}, 7),
                                        call_of("norm", Kind::operation, {0, 20}, 4),  // 2 s of memory
                                        call_of("upload", Kind::host_copy, {0, 1000}, 1),
                                        call_of("wait", Kind::host, {}, 0)};
  const ProfileReport report = report_of(calls, 2, 24, limits, false);
  CHECK(report.step_seconds == Approx(12));
  CHECK(report.device_seconds == Approx(8.5));
  REQUIRE(report.rows.size() == 3);
  CHECK(report.rows[0].name == "gemm");
  CHECK(report.rows[0].calls == Approx(1));
  CHECK(report.rows[0].seconds == Approx(6));
  CHECK(report.rows[0].limit.value() == Approx(4));
  CHECK(report.rows[1].limit.value() == Approx(1));
  CHECK_FALSE(report.rows[2].limit);  // over the bus, whose limit is another
  CHECK(report_of(calls, 2, 24, limits, true).rows[2].limit.value() == Approx(50));
  CHECK_FALSE(report_of(calls, 2, 24, std::nullopt, true).rows[0].limit);
  const nlohmann::json json = json_of(report);
  CHECK(json["operations"][0]["limit_seconds"] == 4.0);
  CHECK_FALSE(json["operations"][2].contains("limit_seconds"));
}

TEST_CASE("profile: the trace has a row of device work and a row of host calls") {
  const goat::test::TemporaryFolder folder;
  TimedCall step{.kind = TimedCall::Kind::host, .name = "step \"1\"", .host_start = 0, .host_seconds = 4};
  TimedCall work{.name = "fill",
                 .work = {0, 256},
                 .host_start = 1,
                 .host_seconds = 0.5,
                 .device_start = 1.25,
                 .device_seconds = 2};
  write_chrome_trace(folder.path() / "trace.json", std::vector{work, step}, "a GPU");
  const nlohmann::json events = read_json(folder.path() / "trace.json").at("traceEvents");
  std::map<std::string, std::vector<nlohmann::json>> rows;
  std::map<int, std::string> names;
  for (const auto& event : events)
    if (event["ph"] == "M") names[event["tid"]] = event["args"]["name"];
  for (const auto& event : events)
    if (event["ph"] == "X") rows[names.at(event["tid"])].push_back(event);
  REQUIRE(rows.size() == 2);
  REQUIRE(rows["device: a GPU"].size() == 1);
  const nlohmann::json on_device = rows["device: a GPU"][0];
  CHECK(on_device["ts"] == 1.25e6);
  CHECK(on_device["dur"] == 2e6);
  CHECK(on_device["args"]["bytes"] == 256.0);
  REQUIRE(rows["host calls"].size() == 2);
  CHECK(rows["host calls"][0]["ts"] == 1e6);
  CHECK(rows["host calls"][1]["name"] == "step \"1\"");
}

TEST_CASE("run time: what was given comes first, then what was measured, then what is assumed") {
  const goat::test::TemporaryFolder folder;
  const Config config = tiny();
  const double flops = flops_per_token(config);
  const DeviceInfo cpu{"cpu", "a processor"}, h200{"cuda", "NVIDIA H200, 132 SMs"};
  const auto speed = [&](const DeviceInfo& device, const SpeedOptions& options) {
    return expected_speed(config, Arithmetic::bf16, device, folder.path(), options);
  };
  CHECK_FALSE(speed(cpu, {}));
  CHECK(speed(h200, {})->tokens_per_second == Approx(assumed_mfu * 989.4e12 / flops));
  CHECK_THAT(speed(h200, {})->source,
             ContainsSubstring("assumed") && ContainsSubstring("40%") && ContainsSubstring("NVIDIA H200"));
  CHECK(speed(cpu, {.peak_tflops = 2})->tokens_per_second == Approx(assumed_mfu * 2e12 / flops));

  std::ostringstream metrics;
  for (int step = 1; step <= 7; ++step) {
    const double rate = step <= 2 ? 1 : 10.0 * step;  // median of 30 .. 70
    metrics << nlohmann::json{{"step", step}, {"tokens_per_second", rate}, {"flops_per_second", rate * flops}}
            << "\n";
  }
  write(folder.path() / "metrics.jsonl", metrics.str() + "{\"step\": 8, \"tok");
  CHECK(speed(h200, {})->tokens_per_second == Approx(50));
  CHECK_THAT(speed(h200, {})->source, ContainsSubstring("measured"));

  nlohmann::json summary = {
      {"tokens_per_second", 123.0}, {"flops_per_token", flops}, {"device_description", "card 7"}};
  write(folder.path() / "summary.json", summary.dump());
  CHECK(speed(h200, {.peak_tflops = 2})->tokens_per_second == Approx(123));
  CHECK_THAT(speed(cpu, {})->source, ContainsSubstring("card 7"));
  CHECK(speed(cpu, {.tokens_per_second = 7})->tokens_per_second == Approx(7));

  summary["flops_per_token"] = 2 * flops;  // of another model
  write(folder.path() / "summary.json", summary.dump());
  CHECK(speed(h200, {})->tokens_per_second == Approx(50));
}
