// A training step on a device with a queue: nothing waits that need not, and what is enqueued, recorded and
// replayed gives the same bits whenever the device runs it.
#include "kernels/cpu/cpu_device.h"
#include "kernels/open/open_device.h"
#include "kernels/simt/options.h"
#include "test/catch.h"
#include "test/one_step.h"
#include "test/scoped_options.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::on_simt::Streams;

namespace {

Config tiny_config(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"model.width=16",      "model.vocab=13",   "prior.pos_rank=1",
                                  "prior.abs_rank=2",    "data.seq_len=8",   "train.batch=6",
                                  "train.micro_batch=2", "train.steps=7",    "train.warmup=1",
                                  "eval.tokens=24",      "train.spike_z=50", "train.spike_window=2"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("copy_mixture", all);
}

// Losses, gradient norms and limits of each step, and the final weights.
struct Outcome {
  std::vector<float> scalars;
  std::vector<std::vector<float>> weights;
  bool operator==(const Outcome&) const = default;
};

// A trainer with initial weights on the simulated GPU.
struct Simulated {
  explicit Simulated(const Config& config)
      : device(open_device("simt")),
        training(open_training_source(config)),
        trainer(config, *device, *training, nullptr) {
    trainer.allocate();
    trainer.initialize();
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<TokenSource> training;
  Trainer trainer;
};

void add(Outcome& outcome, const std::optional<StepResult>& result) {
  if (!result) return;
  const StepState& scalars = result->scalars;
  for (const float value : {scalars.loss, scalars.grad_norm, scalars.loss_limit, scalars.grad_norm_limit})
    outcome.scalars.push_back(value);
}

Outcome train(const Config& config, bool wait_for_each_step = false) {
  Simulated run(config);
  Trainer& trainer = run.trainer;
  Outcome outcome;
  while (!trainer.finished()) {
    add(outcome, trainer.step());
    if (wait_for_each_step) add(outcome, trainer.finish_step());
  }
  add(outcome, trainer.finish_step());
  for (const StoredTensor& tensor : trainer.parameters().stored())
    outcome.weights.push_back(trainer.parameters().read(*run.device, tensor));
  return outcome;
}

}  // namespace

TEST_CASE("step: the same bits whenever the device runs its queue, recorded or not, waited for or not") {
  for (const char* precision : {"model.precision=bf16", "model.precision=fp32"}) {
    const Outcome want = train(tiny_config({precision, "train.cuda_graph=off"}), true);
    REQUIRE(want.scalars.size() == 7 * 4);
    CHECK(want.scalars[4 * 2 + 2] == 0);  // the window of two is full after the second step,
    CHECK(want.scalars[4 * 3 + 2] > 0);   // whose result is known before the fourth
    for (const char* graph : {"train.cuda_graph=off", "train.cuda_graph=on"}) {
      const Config config = tiny_config({precision, graph});
      const auto check = [&](Streams streams, std::uint64_t seed) {
        goat::test::RestoredOptions options;
        options->streams = streams;
        options->seed = seed;
        INFO(precision << ", " << graph << ", streams " << static_cast<int>(streams) << ", seed " << seed);
        CHECK((train(config) == want));  // in brackets: not printed
      };
      check(Streams::at_once, 1);
      check(Streams::late, 1);
      check(Streams::urgent_first, 1);
      for (std::uint64_t seed = 1; seed <= 4; ++seed) check(Streams::random, seed);
    }
  }
}

TEST_CASE("step: the host waits once a step, for the scalars of the step before") {
  for (const char* graph : {"train.cuda_graph=off", "train.cuda_graph=on"}) {
    const Config config = tiny_config({graph});
    Simulated run(config);
    Trainer& trainer = run.trainer;
    std::vector<std::uint64_t> waits;
    while (!trainer.finished()) {
      const std::uint64_t before = on_simt::counters().host_waits;
      trainer.step();
      waits.push_back(on_simt::counters().host_waits - before);
    }
    INFO(graph);
    CHECK(waits == std::vector<std::uint64_t>{0, 1, 1, 1, 1, 1, 1});
  }
}

TEST_CASE("step: while one step's result is fetched, the next one stays enqueued") {
  goat::test::RestoredOptions options;
  options->streams = Streams::late;
  const Config config = tiny_config();
  Simulated run(config);
  Trainer& trainer = run.trainer;
  run.device->synchronize();
  std::vector<std::uint64_t> blocks;  // run by each call
  const auto count = [&](const auto& call) {
    const std::uint64_t before = on_simt::counters().blocks;
    call();
    blocks.push_back(on_simt::counters().blocks - before);
  };
  while (!trainer.finished()) count([&] { trainer.step(); });
  count([&] { trainer.finish_step(); });
  const std::uint64_t step = blocks.back();
  CHECK(step > 0);
  CHECK(blocks[0] == 0);
  CHECK(blocks[1] >= step);  // the first step also fills tables
  for (std::size_t call = 2; call < blocks.size(); ++call) CHECK(blocks[call] == step);
}

namespace {
// A cpu that can record, and counts what it records and replays, and the copies for which a host waits.
class RecordingDevice final : public CpuDevice {
 public:
  int recorded = 0, replayed = 0, copies = 0;
  bool has_memory = true;  // for what it records
  void upload(void* device, const void* host, std::size_t bytes) override {
    ++copies;
    CpuDevice::upload(device, host, bytes);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    ++copies;
    CpuDevice::download(host, device, bytes);
  }
  void enqueue_upload(void* device, const void* host, std::size_t bytes) override {
    CpuDevice::upload(device, host, bytes);
  }
  void enqueue_download(void* host, const void* device, std::size_t bytes) override {
    CpuDevice::download(host, device, bytes);
  }
  bool can_capture() const override { return true; }
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override {
    if (!has_memory) throw std::bad_alloc();
    ++recorded;
    auto graph = std::make_unique<Graph>();
    graph->work = work;
    return graph;
  }
  void replay(DeviceGraph& graph) override {
    ++replayed;
    static_cast<Graph&>(graph).work();
  }

 private:
  struct Graph final : DeviceGraph {
    std::function<void()> work;
  };
};
}  // namespace

TEST_CASE("step: the second micro-batch is recorded, and replayed from then on, unless cuda_graph is off") {
  for (const std::string graph : {"auto", "on", "off"}) {
    const Config config = tiny_config({"train.cuda_graph=" + graph});
    RecordingDevice device;
    const auto training = open_training_source(config);
    Trainer trainer(config, device, *training, nullptr);
    trainer.allocate();
    trainer.initialize();
    device.copies = 0;
    while (!trainer.finished()) goat::test::one_step(trainer);
    INFO(graph);
    CHECK(device.copies == 0);
    CHECK(device.recorded == (graph == "off" ? 0 : 1));
    CHECK(device.replayed == (graph == "off" ? 0 : 7 * 3 - 1));
  }
}

TEST_CASE("step: without memory for a record, auto goes on without one, and on says what to do") {
  for (const std::string graph : {"auto", "on"}) {
    const Config config = tiny_config({"train.cuda_graph=" + graph});
    RecordingDevice device;
    device.has_memory = false;
    const auto training = open_training_source(config);
    Trainer trainer(config, device, *training, nullptr);
    trainer.allocate();
    trainer.initialize();
    if (graph == "on") {
      CHECK_THROWS_WITH(trainer.step(), ContainsSubstring("none left to record a micro-batch"));
      continue;
    }
    while (!trainer.finished()) goat::test::one_step(trainer);
    CHECK(trainer.state().updates == 7);
    CHECK(device.replayed == 0);
  }
}

TEST_CASE(
    "step: a trainer that goes while its step is enqueued waits until its memory is not used any more") {
  goat::test::RestoredOptions options;
  options->streams = Streams::late;
  const Config config = tiny_config();
  const auto device = open_device("simt");
  const auto training = open_training_source(config);
  {
    Trainer trainer(config, *device, *training, nullptr);
    trainer.allocate();
    trainer.initialize();
    trainer.step();
  }
  CHECK_NOTHROW(device->synchronize());
}

TEST_CASE("step: the memory that is planned is what a GPU run allocates, workspaces included") {
  for (const char* settings : {"model.block=gpt", "model.block=llama"}) {
    const Config config = tiny_config({settings, "eval.tokens=48"});
    const auto device = open_device("simt");
    const auto training = open_training_source(config), validation = open_validation_source(config);
    const std::size_t before = on_simt::device_memory_use().bytes;
    Trainer trainer(config, *device, *training, validation.get());
    trainer.allocate();
    trainer.initialize();
    goat::test::one_step(trainer);
    goat::test::one_step(trainer);
    trainer.validate();
    INFO(settings);
    CHECK(on_simt::device_memory_use().bytes - before == trainer.memory().total_bytes());
  }
}
