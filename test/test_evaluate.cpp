// Evaluation: which tokens are evaluated at which length, and that passes, sums and bins change none of their
// losses.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "data/shard.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/one_step.h"
#include "test/operand.h"
#include "test/temporary_folder.h"
#include "train/eval/evaluate.h"
#include "train/model/evaluation.h"
#include "train/model/model_parameters.h"
#include "train/run/checkpoint.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::test::one_step;
using goat::test::Rng;

namespace {

namespace fs = std::filesystem;

Config tiny_config(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {
      "model.layers=2",           "model.heads=2",    "model.width=24",      "model.vocab=13",
      "data.seq_len=8",           "prior.pos_rank=2", "prior.abs_rank=3",    "prior.init=random",
      "prior.recency=free",       "train.batch=4",    "train.micro_batch=2", "train.steps=5",
      "train.warmup=2",           "train.lr=1e-2",    "train.min_lr=0",      "eval.tokens=48",
      "prior.sink_init_scale=0.5"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("copy_mixture", all);
}

// Models that know positions by their prior, not at all, and by rotations.
const std::vector<std::vector<std::string>> models = {
    {}, {"model.attention=none"}, {"model.block=llama", "model.attention=rope", "model.tied=false"}};

// A shard of random tokens below 13.
class RandomShard {
 public:
  RandomShard(std::size_t count, std::uint64_t seed) {
    Rng rng(seed);
    std::uniform_int_distribution<int> token(0, 12);
    for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<std::uint16_t>(token(rng)));
    const std::array<std::int32_t, 256> header{Shard::uint16_tokens.magic, Shard::uint16_tokens.version,
                                               static_cast<std::int32_t>(count)};
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.data()), sizeof header);
    file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(2 * count));
  }
  RandomShard(const RandomShard&) = delete;
  RandomShard& operator=(const RandomShard&) = delete;
  ~RandomShard() { fs::remove(path); }

  // A config that reads it; block is "bos" or "window".
  Config config(const std::string& block, std::int64_t length) const {
    return tiny_config({"data.source=shards", "data.train=" + path.string(), "data.val=" + path.string(),
                        "data.block=" + block, "data.bos=12", "data.seq_len=" + std::to_string(length)});
  }

  fs::path path = fs::temp_directory_path() / ("goat_eval_" + std::to_string(::getpid()) + ".bin");
  std::vector<std::uint16_t> tokens;
};

// A model after a few steps of training on the CPU.
struct TrainedTiny {
  explicit TrainedTiny(const Config& config)
      : device(open_device("cpu")),
        training(open_training_source(config)),
        validation(open_validation_source(config)),
        trainer(config, *device, *training, validation.get()) {
    trainer.allocate();
    trainer.initialize();
    for (std::int64_t step = 0; step < config.steps(); ++step) one_step(trainer);
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<TokenSource> training, validation;
  Trainer trainer;
};

// Random tokens of which every third target is not counted.
class MaskedSource final : public TokenSource {
 public:
  std::string description() const override { return "masked"; }
  std::uint64_t sequences() const override { return endless; }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    Rng rng(index);
    std::uniform_int_distribution<std::int32_t> token(0, 12);
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      inputs[t] = token(rng);
      targets[t] = t % 3 == 0 ? -1 : token(rng);
    }
  }
};

// A cpu device that knows how much of its memory is in use.
class MeteredDevice final : public CpuDevice {
 public:
  void* allocate(std::size_t bytes) override {
    void* memory = CpuDevice::allocate(bytes);
    sizes_[memory] = bytes;
    most = std::max(most, now += bytes);
    return memory;
  }
  void release(void* memory) noexcept override {
    if (const auto size = sizes_.find(memory); size != sizes_.end()) {
      now -= size->second;
      sizes_.erase(size);
    }
    CpuDevice::release(memory);
  }
  std::size_t now = 0, most = 0;

 private:
  std::map<void*, std::size_t> sizes_;
};

// The checkpoint of a run in `folder`.
std::string trained_checkpoint(const fs::path& folder, const Config& config) {
  TrainedTiny tiny(config);
  RankGroup alone(Launch{}, {});
  return save_checkpoint(folder, config, tiny.trainer.state(), {}, *tiny.device, tiny.trainer.parameters(),
                         alone)
      .string();
}

int evaluate_runs(const std::vector<std::string>& checkpoints, Device& device,
                  std::optional<std::int64_t> samples = {}) {
  EvalOptions options;
  options.checkpoints = checkpoints;
  options.samples = samples;
  return run_eval(options, device);
}

std::size_t planned_bytes(const Config& config, BatchShape shape) {
  ParameterSet parameters;
  declare_parameters(config, parameters);
  MemoryPlan memory;
  const Model model(config, open_device("cpu")->info(), shape, false, parameters, memory);
  return memory.total_bytes();
}

}  // namespace

TEST_CASE("evaluation: recut takes the most tokens that every length divides") {
  CHECK(recut({4, 8, 16}, 100) == std::vector<Cut>{{4, 24}, {8, 12}, {16, 6}});
  CHECK(recut({16, 4}, 100) == std::vector<Cut>{{16, 6}, {4, 24}});
  CHECK(recut({6, 4}, 47) == std::vector<Cut>{{6, 6}, {4, 9}});
  CHECK(recut({7}, 7) == std::vector<Cut>{{7, 1}});
  CHECK_THROWS_AS(recut({4, 128}, 100), DataError);
  CHECK_THROWS_AS(recut({8, 9, 10}, 100), DataError);
  CHECK_THROWS_AS(recut({15'999'989, 15'999'967, 15'999'949}, std::int64_t{1} << 40),
                  DataError);  // primes: their product has 72 bits
}

TEST_CASE(
    "evaluation: the paper's protocol takes 100 sequences up to 8k, then 819,200 tokens, and what there is "
    "where data are short") {
  CHECK(paper_cuts({2048, 4096, 8192, 16384, 32768}, 10'000'000) ==
        std::vector<Cut>{{2048, 100}, {4096, 100}, {8192, 100}, {16384, 50}, {32768, 25}});
  CHECK(paper_cuts({2048, 16384, 1'000'000}, 2'000'000) ==
        std::vector<Cut>{{2048, 100}, {16384, 50}, {1'000'000, 1}});
  CHECK(paper_cuts({2048, 16384}, 100'000) == std::vector<Cut>{{2048, 48}, {16384, 6}});
  CHECK_THROWS_AS(paper_cuts({2048, 16384}, 16'000), DataError);
}

TEST_CASE("evaluation: every length sees the same targets in the same order, in both block modes") {
  const std::uint64_t seed = goat::test::fresh_seed();
  INFO("seed " << seed);
  const RandomShard shard(103, seed);
  for (const char* block : {"bos", "window"}) {
    const bool bos = std::string(block) == "bos";
    const auto all = open_validation_source(shard.config(block, 1));
    CHECK(all->sequences() == (bos ? 103 : 102));
    for (const Cut cut : recut({4, 8, 24}, static_cast<std::int64_t>(all->sequences()))) {
      const auto source = open_validation_source(shard.config(block, cut.length));
      std::vector<std::int32_t> inputs(static_cast<std::size_t>(cut.length)), targets(inputs.size()), seen;
      for (std::int64_t s = 0; s < cut.sequences; ++s) {
        source->read(static_cast<std::uint64_t>(s), inputs, targets);
        CHECK(inputs.front() == (bos ? 12 : shard.tokens[static_cast<std::size_t>(s * cut.length)]));
        CHECK(std::equal(inputs.begin() + 1, inputs.end(), targets.begin()));
        seen.insert(seen.end(), targets.begin(), targets.end());
      }
      const auto first = shard.tokens.begin() + (bos ? 0 : 1);
      CHECK(seen == std::vector<std::int32_t>(first, first + 96));
    }
  }
}

TEST_CASE(
    "evaluation: at the training length and on the same data the loss is the trainer's validation loss") {
  for (const std::vector<std::string>& settings : models) {
    const Config config = tiny_config(settings);
    TrainedTiny tiny(config);
    const auto source = open_validation_source(config);
    const TokenLosses losses =
        evaluate(config, tiny.trainer.parameters(), *tiny.device, *source, {8, 6}, false);
    CHECK(losses.tokens() == 48);
    CHECK(losses.per_token.empty());
    CHECK(losses.nll() == Approx(tiny.trainer.validate().value()).epsilon(1e-6));
  }
}

TEST_CASE(
    "evaluation: the size of passes changes no loss beyond rounding, also where the last one is not full") {
  const Config config = tiny_config();
  TrainedTiny tiny(config);
  Config longer = config;
  longer.data.seq_len = 37;
  const auto source = open_validation_source(longer);
  const Cut cut{37, 7};
  const ParameterSet& parameters = tiny.trainer.parameters();
  const DeviceInfo& device = tiny.device->info();
  CHECK(sequences_per_pass(config, device, parameters, cut, {}) == 7);
  CHECK(sequences_per_pass(config, device, parameters, cut, {.tokens = 5 * 37}) ==
        4);  // 4 + 3 rather than 5 + 2
  CHECK(sequences_per_pass(config, device, parameters, cut, {.tokens = 1}) == 1);
  CHECK(sequences_per_pass(config, device, parameters, cut, {.activation_bytes = 1}) == 1);

  const TokenLosses whole = evaluate(config, parameters, *tiny.device, *source, cut, true);
  for (const std::int64_t tokens : {1, 2 * 37, 5 * 37}) {
    std::vector<std::int64_t> progress;
    const TokenLosses cut_up =
        evaluate(config, parameters, *tiny.device, *source, cut, true, {.tokens = tokens},
                 [&](std::int64_t done) { progress.push_back(done); });
    REQUIRE(cut_up.per_token.size() == whole.per_token.size());
    for (std::size_t n = 0; n < whole.per_token.size(); ++n)
      CHECK(std::abs(cut_up.per_token[n] - whole.per_token[n]) <= 1e-6f * (1 + whole.per_token[n]));
    CHECK(cut_up.nll() == Approx(whole.nll()).epsilon(1e-6));
    CHECK(progress.back() == 7);
    CHECK(std::is_sorted(progress.begin(), progress.end()));
  }
}

TEST_CASE(
    "evaluation: a model that is there already, also one for training, gives the losses of one made for it") {
  const Config config = tiny_config({"train.micro_batch=4"});
  TrainedTiny tiny(config);
  Config shorter = config;
  shorter.data.seq_len = 7;
  const auto source = open_validation_source(config), shorter_source = open_validation_source(shorter);
  const Cut cut{8, 6};  // 4 + 2 sequences
  const TokenLosses wanted = evaluate(config, tiny.trainer.parameters(), *tiny.device, *source, cut, true);
  for (const bool training : {false, true}) {
    MemoryPlan memory;
    Model model(config, tiny.device->info(), {4, 8}, training, tiny.trainer.parameters(), memory);
    memory.allocate(*tiny.device);
    model.bind(*tiny.device);
    const TokenLosses losses = measure_losses(model, *tiny.device, *source, cut, true);
    CHECK(losses.counted == wanted.counted);
    CHECK(losses.nll() == Approx(wanted.nll()).epsilon(1e-6));
    REQUIRE(losses.per_token.size() == wanted.per_token.size());
    for (std::size_t n = 0; n < wanted.per_token.size(); ++n)
      CHECK(losses.per_token[n] == Approx(wanted.per_token[n]).epsilon(1e-5));
    CHECK_THROWS_AS(measure_losses(model, *tiny.device, *shorter_source, {7, 6}, false),
                    std::invalid_argument);
  }
}

TEST_CASE(
    "evaluation: a longer sequence begins with the losses of the shorter one, as attention is causal and the "
    "prior keeps L_train") {
  for (const std::vector<std::string>& settings : models) {
    const Config config = tiny_config(settings);
    TrainedTiny tiny(config);
    std::vector<float> shorter;
    for (const std::int64_t length : {8, 31}) {
      Config data = config;
      data.data.seq_len = length;  // sequences of the copy mixture are prefixes of longer ones
      const auto source = open_validation_source(data);
      const TokenLosses losses =
          evaluate(config, tiny.trainer.parameters(), *tiny.device, *source, {length, 1}, true);
      if (shorter.empty()) shorter = losses.per_token;
      for (std::size_t t = 0; t < shorter.size(); ++t)
        CHECK(losses.per_token[t] == Approx(shorter[t]).epsilon(1e-5));
    }
  }
}

TEST_CASE(
    "evaluation: sums by position, mean and bins agree with the losses of the tokens; masked targets are NaN "
    "and not counted") {
  const Config config = tiny_config();
  TrainedTiny tiny(config);
  MaskedSource source;
  const std::size_t length = 29, sequences = 5;
  const TokenLosses losses =
      evaluate(config, tiny.trainer.parameters(), *tiny.device, source, {29, 5}, true, {.tokens = 2 * 29});
  REQUIRE(losses.per_token.size() == length * sequences);
  double total = 0;
  std::int64_t counted = 0;
  for (std::size_t t = 0; t < length; ++t) {
    double sum = 0;
    for (std::size_t s = 0; s < sequences; ++s) {
      const float loss = losses.per_token[s * length + t];
      CHECK(std::isnan(loss) == (t % 3 == 0));
      if (t % 3 != 0) sum += static_cast<double>(loss);
    }
    CHECK(losses.sum[t] == Approx(sum).epsilon(1e-12));
    CHECK(losses.counted[t] == (t % 3 == 0 ? 0 : 5));
    total += sum;
    counted += losses.counted[t];
  }
  CHECK(losses.tokens() == counted);
  CHECK(losses.nll() == Approx(total / static_cast<double>(counted)).epsilon(1e-12));

  const std::vector<CurveBin> curve = losses.curve();
  std::vector<std::int64_t> edges;
  for (const CurveBin& bin : curve) edges.push_back(bin.first);
  CHECK(edges == std::vector<std::int64_t>{0, 1, 2, 3, 4, 6, 8, 12, 16, 24});
  double weighted = 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    CHECK(curve[i].end == (i + 1 < curve.size() ? edges[i + 1] : 29));
    const auto first = losses.counted.begin() + curve[i].first;
    const auto targets = std::accumulate(first, losses.counted.begin() + curve[i].end, std::int64_t{0});
    if (targets > 0) weighted += curve[i].nll * static_cast<double>(targets);
  }
  CHECK(weighted == Approx(total).epsilon(1e-12));
}

TEST_CASE("evaluation: planned memory is linear in T, and a small model at T = 32,768 fits into 2 GB") {
  const Config config =
      load_config("copy_mixture", {"model.layers=4", "model.heads=4", "model.width=128", "model.vocab=256",
                                   "prior.pos_rank=4", "data.seq_len=128"});
  const std::size_t at_16k = planned_bytes(config, {1, 16'384}), at_32k = planned_bytes(config, {1, 32'768});
  const std::size_t at_64k = planned_bytes(config, {1, 65'536});
  CHECK(at_32k < 2'000'000'000);
  CHECK(static_cast<double>(at_64k - at_32k) ==
        Approx(2.0 * static_cast<double>(at_32k - at_16k)).epsilon(1e-3));
  CHECK(static_cast<double>(at_32k) < 2.01 * static_cast<double>(at_16k));
}

TEST_CASE(
    "evaluation: of several runs all are checked before memory is taken, and one model is there at a time") {
  const goat::test::TemporaryFolder folder;
  const std::string small = trained_checkpoint(folder.path() / "small", tiny_config()),
                    large = trained_checkpoint(folder.path() / "large", tiny_config({"model.width=96"}));
  const auto most_memory = [](const std::vector<std::string>& checkpoints) {
    MeteredDevice device;
    CHECK(evaluate_runs(checkpoints, device) == 0);
    CHECK(device.now == 0);
    return device.most;
  };
  const std::size_t of_small = most_memory({small}), of_large = most_memory({large});
  CHECK(of_small < of_large);
  CHECK(most_memory({small, large}) == of_large);
  CHECK(most_memory({large, small}) == of_large);

  MeteredDevice untouched;
  CHECK_THROWS_AS(evaluate_runs({small, folder.file("missing")}, untouched), DataError);
  CHECK_THROWS_AS(evaluate_runs({small, large, small}, untouched), ConfigError);
  CHECK_THROWS_AS(evaluate_runs({small, large}, untouched, 3), ConfigError);
  CHECK(untouched.most == 0);
}
