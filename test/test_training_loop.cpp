// The loop of a training run: whatever ends it, what was reached is saved.

#include "train/training/training_loop.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "test/catch.h"
#include "test/failing_device.h"
#include "test/temporary_folder.h"
#include "train/run/shared_run.h"
#include "train/training/sources.h"

using namespace goat;
using goat::test::FailingDevice;
namespace fs = std::filesystem;

namespace {

Config tiny_config(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"model.width=16",      "model.vocab=13", "prior.pos_rank=1",
                                  "prior.abs_rank=2",    "data.seq_len=8", "train.batch=4",
                                  "train.micro_batch=2", "train.steps=4",  "train.warmup=1",
                                  "eval.interval=2",     "eval.tokens=24", "log.interval=100"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("copy_mixture", all);
}

// Passes reads on, and throws DataError in read number `fatal` (from 1; 0: never) of those that count: while
// `armed`, and of the sequences from `first_counted` on.
class FailingSource final : public TokenSource {
 public:
  explicit FailingSource(std::unique_ptr<TokenSource> inner) : inner_(std::move(inner)) {}
  std::function<bool()> armed = [] { return true; };
  std::uint64_t first_counted = 0;
  long fatal = 0;
  std::atomic<long> reads = 0;

  std::string description() const override { return inner_->description(); }
  std::uint64_t sequences() const override { return inner_->sequences(); }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    if (index >= first_counted && armed() && ++reads == fatal) throw DataError("planted failure");
    inner_->read(index, inputs, targets);
  }

 private:
  std::unique_ptr<TokenSource> inner_;
};

// Nothing on stdout and stderr while it lives.
class Silence {
 public:
  Silence() {
    std::fflush(stdout);
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(nothing, STDOUT_FILENO);
    ::dup2(nothing, STDERR_FILENO);
    ::close(nothing);
  }
  ~Silence() {
    std::fflush(stdout);
    ::dup2(stdout_, STDOUT_FILENO);
    ::dup2(stderr_, STDERR_FILENO);
    ::close(stdout_);
    ::close(stderr_);
  }

 private:
  int stdout_ = ::dup(STDOUT_FILENO), stderr_ = ::dup(STDERR_FILENO);
};

// In memory where there is such a place: hundreds of runs are made durable with fsync.
struct Folder : goat::test::TemporaryFolder {
  Folder() : TemporaryFolder(fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()) {}
};

// What a start of a run came to.
struct Outcome {
  int code = -1;  // -1: it threw
  std::string error;
  bool bad_data = false;
  RunState state;
  bool consistent = true;
  long device_calls = 0, training_reads = 0, validation_reads = 0;
};

// Where the failure is planted; calls and reads count from those after the first step on.
struct Plant {
  bool at_once = true;  // see FailingDevice
  long device = 0, training = 0, validation = 0;
  long lost_from = 0;  // the device is lost in this call and all that follow
};

Outcome run(const Config& config, const fs::path& folder, const Plant& plant,
            ExistingRun existing = ExistingRun::refuse) {
  const Silence silence;
  FailingDevice device;
  device.at_once = plant.at_once;
  FailingSource training(open_training_source(config)), validation(open_validation_source(config));
  RankGroup alone(Launch{}, {});
  SharedRun shared(folder, existing, alone);
  RunFolder& run_folder = *shared.folder();
  const RunState state = run_folder.resumed() ? run_folder.resumed()->manifest.state : RunState{};
  device.armed = validation.armed = [] { return false; };
  training.first_counted =
      static_cast<std::uint64_t>(config.train.batch);  // a thread reads ahead of the steps
  Trainer trainer(config, device, training, &validation, state);
  TrainingLog log(config, device, run_folder, trainer);
  trainer.allocate();
  if (run_folder.resumed())
    trainer.restore(run_folder.resumed()->folder);
  else
    trainer.initialize();
  device.armed = validation.armed = [&] { return trainer.state().step >= 1; };
  device.fatal = plant.device;
  device.lost_from = plant.lost_from;
  training.fatal = plant.training;
  validation.fatal = plant.validation;

  Outcome outcome;
  try {
    outcome.code = TrainingLoop(config, device, trainer, run_folder, log, {}).run(std::nullopt);
  } catch (const DataError& error) {
    outcome.error = error.what();
    outcome.bad_data = true;
  } catch (const std::runtime_error& error) {
    outcome.error = error.what();
  }
  outcome.state = trainer.state();
  outcome.consistent = trainer.consistent();
  outcome.device_calls = device.calls;
  outcome.training_reads = training.reads;
  outcome.validation_reads = validation.reads;
  return outcome;
}

std::optional<FoundCheckpoint> newest(const fs::path& folder) {
  return newest_checkpoint(folder, Needed::everything, [](const std::string& warning) { FAIL(warning); });
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

std::string final_model(const fs::path& folder) {
  return bytes_of(folder / "checkpoints/step_00000004/model.safetensors");
}

std::size_t lines_of(const fs::path& path) {
  const std::string text = bytes_of(path);
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

// A run that breaks off with `plant` and is resumed ends as `want` did.
void breaks_off_and_is_resumed(const Config& config, const Plant& plant, const std::string& want) {
  const Folder temporary;
  const fs::path folder = temporary.path() / "run";
  const Outcome outcome = run(config, folder, plant);
  CHECK(outcome.bad_data == (plant.device == 0));
  CHECK_THAT(outcome.error, ContainsSubstring("planted failure"));
  const auto checkpoint = newest(folder);
  if (outcome.consistent) {
    REQUIRE(checkpoint);
    CHECK(checkpoint->manifest.state.step == outcome.state.step);
    CHECK(lines_of(folder / "metrics.jsonl") == static_cast<std::size_t>(outcome.state.step));
    CHECK_THAT(outcome.error, ContainsSubstring(checkpoint->folder.string()));
  } else {
    CHECK_THAT(outcome.error, ContainsSubstring("cannot be used"));
    CHECK_THAT(outcome.error, ContainsSubstring(checkpoint ? checkpoint->folder.string() : "no checkpoint"));
  }
  CHECK(run(config, folder, {.at_once = plant.at_once}, ExistingRun::resume).code == 0);
  CHECK((final_model(folder) == want));  // in brackets: not printed
}

}  // namespace

TEST_CASE("training loop: a call that fails after the first step ends the run with what was reached saved") {
  for (const auto& [interval, at_once] : {std::pair{"checkpoint.interval=0", true},
                                          {"checkpoint.interval=1", true},
                                          {"eval.interval=0", false}}) {
    const Config config = tiny_config({interval});
    const Folder temporary;
    const Outcome unbroken = run(config, temporary.path() / "run", {.at_once = at_once});
    REQUIRE(unbroken.code == 0);
    const std::string want = final_model(temporary.path() / "run");
    REQUIRE(unbroken.training_reads == 3 * 4);
    REQUIRE(unbroken.validation_reads == (at_once ? 2 * 3 : 3));
    for (long call = 1; call <= unbroken.training_reads; ++call) {
      INFO(interval << ", training read " << call);
      breaks_off_and_is_resumed(config, {.at_once = at_once, .training = call}, want);
    }
    for (long call = 1; call <= unbroken.validation_reads; ++call) {
      INFO(interval << ", validation read " << call);
      breaks_off_and_is_resumed(config, {.at_once = at_once, .validation = call}, want);
    }
  }
}

TEST_CASE("training loop: a run whose steps run ahead logs, validates and saves what one that waits does") {
  const Config config = tiny_config({"model.precision=fp32", "eval.interval=3", "checkpoint.interval=2"});
  const auto left_by = [&](bool at_once) {
    const Folder temporary;
    const fs::path folder = temporary.path() / "run";
    const Outcome outcome = run(config, folder, {.at_once = at_once});
    CHECK(outcome.code == 0);
    CHECK(outcome.validation_reads == 2 * 3);
    std::vector<std::string> left = {bytes_of(folder / "checkpoints/step_00000002/model.safetensors"),
                                     bytes_of(folder / "checkpoints/step_00000002/optimizer.safetensors"),
                                     final_model(folder)};
    std::ifstream metrics(folder / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      nlohmann::json values = nlohmann::json::parse(line);
      for (const char* time : {"seconds", "tokens_per_second", "flops_per_second"})
        REQUIRE(values.erase(time) == 1);
      left.push_back(values.dump());
    }
    CHECK(left.size() == 3 + 4);
    return left;
  };
  CHECK((left_by(false) == left_by(true)));  // in brackets: not printed
}

TEST_CASE("training loop: a run that diverges ends after the same step whether steps run ahead or not") {
  const Config config =
      tiny_config({"model.precision=fp32", "eval.interval=0", "train.steps=20", "train.lr=10",
                   "train.min_lr=10", "train.spike_z=0.001", "train.spike_window=2", "train.max_skips=3"});
  const auto last_step = [&](bool at_once) {
    const Folder temporary;
    const Outcome outcome = run(config, temporary.path() / "run", {.at_once = at_once});
    CHECK(outcome.code == 1);
    CHECK(outcome.state.consecutive_skips == 3);
    return outcome.state.step;
  };
  const std::int64_t step = last_step(true);
  CHECK(step < 20);
  CHECK(last_step(false) == step);
}

TEST_CASE("training loop: whichever call of the device fails, the newest checkpoint is whole and named") {
  const bool at_once = GENERATE(true, false);
  INFO((at_once ? "one step after the other" : "one step ahead"));
  const Config config = tiny_config({at_once ? "eval.interval=3" : "eval.interval=0",
                                     at_once ? "checkpoint.interval=2" : "checkpoint.interval=3"});
  const Folder temporary;
  const Outcome unbroken = run(config, temporary.path() / "run", {.at_once = at_once});
  const std::string want = final_model(temporary.path() / "run");
  REQUIRE(unbroken.device_calls > 200);
  int saved = 0, not_saved = 0, torn = 0;
  for (long call = 1; call <= unbroken.device_calls; ++call) {
    INFO("device call " << call);
    const Folder other;
    const fs::path folder = other.path() / "run";
    const Outcome outcome = run(config, folder, {.at_once = at_once, .device = call});
    if (outcome.error.empty()) {  // it was a checkpoint that failed: training went on
      ++not_saved;
      CHECK(outcome.state.step == 4);
      const auto checkpoint = newest(folder);
      CHECK(outcome.code == (checkpoint && checkpoint->manifest.state.step == 4 ? 0 : 1));
    } else {
      const auto checkpoint = newest(folder);
      saved += checkpoint && checkpoint->manifest.state.step == outcome.state.step;
      torn += !outcome.consistent;
      if (outcome.consistent) CHECK((checkpoint && checkpoint->manifest.state.step == outcome.state.step));
    }
    if (call % 5 != 0) continue;
    CHECK(run(config, folder, {}, fs::exists(folder) ? ExistingRun::resume : ExistingRun::refuse).code == 0);
    CHECK((final_model(folder) == want));
  }
  CHECK(saved > not_saved);
  CHECK(not_saved > 0);
  CHECK(torn > 0);
  CHECK(torn < 30);  // only the calls of the update itself
}

TEST_CASE("training loop: a device that is lost ends the run at once, and the newest checkpoint is named") {
  const Config config = tiny_config({"eval.interval=3", "checkpoint.interval=2"});
  const Folder temporary;
  const long calls = run(config, temporary.path() / "run", {}).device_calls;
  const std::string want = final_model(temporary.path() / "run");
  bool before_a_checkpoint = false, after_one = false;
  for (long call = 1; call <= calls; call += 3) {
    INFO("device call " << call);
    const Folder other;
    const fs::path folder = other.path() / "run";
    const Outcome outcome = run(config, folder, {.lost_from = call});
    const auto checkpoint = newest(folder);
    (checkpoint ? after_one : before_a_checkpoint) = true;
    if (outcome.state.step < 4) {
      CHECK_THAT(outcome.error, ContainsSubstring("planted loss"));
      CHECK_THAT(outcome.error,
                 ContainsSubstring(checkpoint ? checkpoint->folder.string() : "no checkpoint"));
    } else {
      CHECK((outcome.code == 1 || !outcome.error.empty()));
    }
    CHECK(outcome.device_calls == call);  // no further one was tried
    if (call % 5 != 0) continue;
    CHECK(run(config, folder, {}, ExistingRun::resume).code == 0);
    CHECK((final_model(folder) == want));
  }
  CHECK(before_a_checkpoint);
  CHECK(after_one);
}

TEST_CASE("training loop: a loss that shows only when saving is tried is told, with the newest checkpoint") {
  const Config config = tiny_config({"eval.interval=3", "checkpoint.interval=2"});
  const Folder temporary;
  const long calls = run(config, temporary.path() / "run", {}).device_calls;
  int tried = 0;
  for (long call = 1; call <= calls; call += 7) {
    INFO("device call " << call);
    const Folder other;
    const fs::path folder = other.path() / "run";
    const Outcome outcome = run(config, folder, {.device = call, .lost_from = call + 1});
    const auto checkpoint = newest(folder);
    CHECK(outcome.device_calls <= call + 1);  // it is tried once
    tried += outcome.device_calls == call + 1;
    if (outcome.state.step == 4) continue;
    CHECK_THAT(outcome.error, ContainsSubstring(checkpoint ? checkpoint->folder.string() : "no checkpoint"));
  }
  CHECK(tried > 0);
}

TEST_CASE("training loop: a run that fails in its first step leaves no folder") {
  const Folder temporary;
  const fs::path folder = temporary.path() / "a/b/run";
  const Config config = tiny_config();
  {
    const Silence silence;
    FailingDevice device;
    FailingSource training(open_training_source(config));
    RunFolder run_folder(folder, ExistingRun::refuse);
    Trainer trainer(config, device, training, nullptr);
    TrainingLog log(config, device, run_folder, trainer);
    trainer.allocate();
    trainer.initialize();
    training.fatal = 3;
    TrainingLoop loop(config, device, trainer, run_folder, log, {});
    CHECK_THROWS_AS(loop.run(std::nullopt), DataError);
  }
  CHECK(fs::is_empty(temporary.path()));
}
