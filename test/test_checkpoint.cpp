// Checkpoint files: what is refused and what it says, which checkpoints are found and which are removed.

#include "train/run/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/checksum.h"
#include "data/token_source.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/failing_device.h"
#include "test/one_step.h"
#include "test/operand.h"
#include "test/temporary_folder.h"
#include "train/files/files.h"
#include "train/files/safetensors.h"
#include "train/model/model_parameters.h"
#include "train/run/newest_checkpoint.h"
#include "train/training/sources.h"
#include "train/training/trainer.h"

using namespace goat;
using goat::test::one_step;
namespace fs = std::filesystem;

namespace {

Config tiny_config() {
  return load_config("copy_mixture", {"model.width=16", "prior.pos_rank=1", "prior.abs_rank=2",
                                      "data.seq_len=8", "train.batch=2", "train.steps=8", "train.warmup=1"});
}

// A model on the cpu whose checkpoints the tests write.
struct Run {
  Config config = tiny_config();
  std::unique_ptr<Device> device = open_device("cpu");
  TrainingPlan plan{config, *device};
  goat::test::TemporaryFolder folder;
  RankGroup alone{Launch{}, {}};
  Run() {
    fs::create_directory(folder.path() / "checkpoints");
    plan.memory.allocate(*device);
    plan.parameters.bind();
    plan.parameters.initialize(*device, 1);
  }
  fs::path save(std::int64_t step) {
    return save_checkpoint(folder.path(), config, {.step = step, .updates = step, .loss = 1.5}, {}, *device,
                           plan.parameters, alone);
  }
  std::vector<std::string> steps() const {
    std::vector<std::string> names;
    for (const fs::path& path : checkpoint_folders(folder.path())) names.push_back(path.filename().string());
    return names;
  }
};

template <class Call>
std::string data_error(Call call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

void change_byte(const fs::path& path, std::uint64_t position) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(position));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(position));
  file.put(byte);
}

std::string header_error(const std::string& json, std::uint64_t bytes) {
  return data_error([&] { parse_safetensors_header(json, bytes, "file"); });
}

}  // namespace

TEST_CASE("checkpoint: weights, optimizer state and scalars come back bit for bit") {
  Run run;
  goat::test::Rng rng(goat::test::fresh_seed());
  std::normal_distribution<float> normal;
  using Kind = ParameterSet::Kind;
  std::vector<std::vector<float>> before;
  for (const Kind kind : {Kind::value, Kind::m, Kind::v})
    for (const StoredTensor& tensor : run.plan.parameters.stored()) {
      std::vector<float> values = run.plan.parameters.read(*run.device, tensor, kind);
      for (float& value : values) value = normal(rng);
      run.plan.parameters.write(*run.device, tensor, values, kind);
      before.push_back(values);
    }
  const fs::path folder = run.save(5);

  Run other;
  const Manifest manifest = verify_checkpoint(folder);
  load_model(folder, *other.device, other.plan.parameters);
  load_optimizer(folder, *other.device, other.plan.parameters);
  std::size_t n = 0;
  for (const Kind kind : {Kind::value, Kind::m, Kind::v})
    for (const StoredTensor& tensor : other.plan.parameters.stored())
      CHECK(other.plan.parameters.read(*other.device, tensor, kind) == before[n++]);
  CHECK(manifest.state.step == 5);
  CHECK(manifest.state.loss == 1.5);
  CHECK(std::isnan(manifest.state.validation_loss));
  CHECK(manifest.config == to_toml(run.config));
}

TEST_CASE(
    "checkpoint: any flipped byte, cut or trailing byte in any of its files is refused, naming the file") {
  Run run;
  const fs::path folder = run.save(3);
  goat::test::Rng rng(goat::test::fresh_seed());
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const fs::path path = folder / name;
    const std::string original = read_small_file(path);
    for (int trial = 0; trial < 20; ++trial) {
      change_byte(path, rng() % original.size());
      INFO(name);
      CHECK_THAT(data_error([&] { verify_checkpoint(folder); }), ContainsSubstring(name));
      write_file_atomically(path, original);
    }
    fs::resize_file(path, original.size() / 2);
    CHECK_THAT(data_error([&] { verify_checkpoint(folder); }), ContainsSubstring(name));
    for (const std::string& trailing : {std::string("x"), std::string(1, '\0')}) {
      write_file_atomically(path, original + trailing);
      CHECK_THAT(data_error([&] { verify_checkpoint(folder); }), ContainsSubstring(name));
    }
    fs::remove(path);
    CHECK_THAT(data_error([&] { verify_checkpoint(folder); }), ContainsSubstring(name));
    write_file_atomically(path, original);
    verify_checkpoint(folder);
  }
}

TEST_CASE("checkpoint: the newest complete one is found, damaged ones before it are reported") {
  Run run;
  run.save(1);
  run.save(2);
  run.save(3);
  fs::remove(run.folder.path() / "checkpoints/step_00000003/state.json");
  change_byte(run.folder.path() / "checkpoints/step_00000002/model.safetensors", 2000);
  fs::create_directories(run.folder.path() / "checkpoints/.step_00000009");
  std::vector<std::string> warnings;
  const auto found = newest_checkpoint(run.folder.path(), Needed::everything,
                                       [&](const std::string& text) { warnings.push_back(text); });
  REQUIRE(found);
  CHECK(found->folder.filename() == "step_00000001");
  REQUIRE(warnings.size() == 2);
  CHECK_THAT(warnings[0], ContainsSubstring("step_00000003"));
  CHECK_THAT(warnings[1], ContainsSubstring("step_00000002") && ContainsSubstring("model.safetensors"));
}

TEST_CASE("checkpoint: cleaning up keeps the newest, milestones, and whatever is not its own") {
  Run run;
  for (const std::int64_t step : {2, 4, 5, 6, 8, 10}) run.save(step);
  fs::create_directories(run.folder.path() / "checkpoints/step_best");
  fs::create_directories(run.folder.path() / "checkpoints/.step_00000012");
  const fs::path newest = run.folder.path() / "checkpoints/step_00000010";
  remove_old_checkpoints(run.folder.path(), 2, 4, newest);
  CHECK(run.steps() == std::vector<std::string>{"step_00000010", "step_00000008", "step_00000004"});
  CHECK(fs::exists(run.folder.path() / "checkpoints/step_best"));
  CHECK_FALSE(fs::exists(run.folder.path() / "checkpoints/.step_00000012"));
  remove_old_checkpoints(run.folder.path(), 0, 0, newest);
  CHECK(run.steps().size() == 3);
}

TEST_CASE("checkpoint: cleaning up never counts damaged ones that are newer than the one just saved") {
  Run run;
  for (const std::int64_t step : {1, 2, 3, 8, 9}) run.save(step);
  for (const char* damaged : {"step_00000008", "step_00000009"})
    change_byte(run.folder.path() / "checkpoints" / damaged / "model.safetensors", 2000);
  remove_old_checkpoints(run.folder.path(), 2, 0, run.folder.path() / "checkpoints/step_00000003");
  CHECK(run.steps() ==
        std::vector<std::string>{"step_00000009", "step_00000008", "step_00000003", "step_00000002"});
}

TEST_CASE("checkpoint: a save that fails half-way leaves nothing, and what was there whole") {
  Run run;
  goat::test::FailingDevice device;
  const auto save = [&](std::int64_t step) {
    return save_checkpoint(run.folder.path(), run.config, {.step = step}, {}, device, run.plan.parameters,
                           run.alone);
  };
  save(4);
  device.calls = 0;
  save(5);
  const long downloads = device.calls;
  CHECK(downloads > 10);
  for (const long fatal : {1L, downloads / 2, downloads}) {
    for (const std::int64_t step : {4, 6}) {  // in the place of another, and as a new one
      device.calls = 0;
      device.fatal = fatal;
      CHECK_THROWS_WITH(save(step), ContainsSubstring("planted failure"));
      device.fatal = 0;
      std::vector<std::string> names;
      for (const auto& entry : fs::directory_iterator(run.folder.path() / "checkpoints"))
        names.push_back(entry.path().filename().string());
      std::ranges::sort(names);
      CHECK(names == std::vector<std::string>{"step_00000004", "step_00000005"});
      verify_checkpoint(run.folder.path() / "checkpoints/step_00000004");
    }
  }
}

TEST_CASE("checkpoint: saving the same step again replaces it; a failed save leaves nothing") {
  Run run;
  run.save(4);
  run.save(4);
  CHECK(run.steps() == std::vector<std::string>{"step_00000004"});
  fs::remove_all(run.folder.path() / "checkpoints");
  std::ofstream(run.folder.path() / "checkpoints") << "a file where the folder should be";
  CHECK_THROWS_AS(run.save(5), std::runtime_error);
  CHECK(run.steps().empty());
}

TEST_CASE("checkpoint: another model's is refused, naming tensor and shapes") {
  Run run;
  const fs::path folder = run.save(1);
  const auto loads_into = [&](const std::vector<std::string>& settings) {
    Config config = tiny_config();
    for (const std::string& setting : settings) apply_setting(config, setting);
    TrainingPlan plan(config, *run.device);
    plan.memory.allocate(*run.device);
    plan.parameters.bind();
    return data_error([&] { load_model(folder, *run.device, plan.parameters); });
  };
  CHECK_THAT(loads_into({"model.width=32"}), ContainsSubstring("embedding.weight") &&
                                                 ContainsSubstring("[64,16]") &&
                                                 ContainsSubstring("[64,32]"));
  CHECK_THAT(loads_into({"model.layers=2"}), ContainsSubstring("tensors"));
  CHECK_THAT(loads_into({"prior.learned_frequencies=true", "prior.recency=free"}),
             ContainsSubstring("tensors"));
  CHECK(loads_into({}) == "no DataError");

  Config sloped = run.config;  // a tensor more, the rest alike
  apply_setting(sloped, "prior.recency=free");
  TrainingPlan plan(sloped, *run.device);
  plan.memory.allocate(*run.device);
  plan.parameters.bind();
  const fs::path other =
      save_checkpoint(run.folder.path(), sloped, {.step = 2}, {}, *run.device, plan.parameters, run.alone);
  CHECK_THAT(data_error([&] { load_model(other, *run.device, run.plan.parameters); }),
             ContainsSubstring("tensors"));
}

TEST_CASE("safetensors: headers that do not add up are refused, naming the tensor") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("b":{"dtype":"F32","shape":[],"data_offsets":[24,28]}})";
  CHECK(parse_safetensors_header(good, 28, "file").size() == 2);
  CHECK(parse_safetensors_header("{}", 0, "file").empty());
  CHECK_THAT(header_error(good, 27), ContainsSubstring("cut short"));
  CHECK_THAT(header_error(good, 29), ContainsSubstring("trailing"));
  CHECK_THAT(header_error("[1]", 0), ContainsSubstring("JSON object"));
  CHECK_THAT(header_error(good.substr(0, 40), 28), ContainsSubstring("JSON object"));
  const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  CHECK_THAT(header_error(one(R"("dtype":"F32","shape":[6])"), 24), ContainsSubstring("'a'"));
  CHECK_THAT(header_error(one(R"("dtype":"BF16","shape":[6],"data_offsets":[0,12])"), 12),
             ContainsSubstring("BF16"));
  CHECK_THAT(header_error(one(R"("dtype":"F32","shape":[7],"data_offsets":[0,24])"), 24),
             ContainsSubstring("does not fill"));
  CHECK_THAT(header_error(one(R"("dtype":"F32","shape":[-6],"data_offsets":[0,24])"), 24),
             ContainsSubstring("shape"));
  CHECK_THAT(header_error(one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
             ContainsSubstring("does not fill"));
  CHECK_THAT(header_error(one(R"("dtype":"F32","shape":[6],"data_offsets":[24,0])"), 24),
             ContainsSubstring("does not fill"));
  CHECK_THAT(header_error(one(R"("dtype":"F32","shape":[6],"data_offsets":[4,28])"), 28),
             ContainsSubstring("begins at byte 4"));
  CHECK_THAT(header_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                          4),
             ContainsSubstring("begins at byte 0"));
}

TEST_CASE("manifest: text comes back as it was; anything else is refused") {
  Manifest manifest;
  manifest.state = {.step = 7,
                    .sequences = 70,
                    .tokens = 700,
                    .updates = 6,
                    .consecutive_skips = 1,
                    .skipped_updates = 2,
                    .seconds = 1.25,
                    .spike_window = {1.5, 0.25, 1.25, 0.5},
                    .loss = 3.5,
                    .validation_loss = 3.25,
                    .best_loss = 3.125,
                    .latest_losses = {3.75, 3.5}};
  manifest.config = "[model]\n";
  manifest.data = {.working_folder = "/home/\xff",
                   .tokenizer = "gpt2",
                   .training = {{"train_000000.bin", 1000, "0123456789abcdef", "ab"}}};
  manifest.files = {{"model.safetensors", 100, {{0, 100, "0123456789abcdef"}}}};
  const std::string text = manifest_text(manifest);
  const Manifest back = parse_manifest(text, "state.json");
  CHECK(back.state.sequences == 70);
  CHECK(back.state.tokens == 700);
  CHECK(back.state.spike_window == manifest.state.spike_window);
  CHECK(back.state.best_loss == 3.125);
  CHECK(back.state.latest_losses == manifest.state.latest_losses);
  CHECK(back.data.tokenizer == "gpt2");
  CHECK(back.data.training.at(0).same_as(manifest.data.training[0]));
  CHECK(back.data.validation.empty());
  CHECK(manifest_text(back) == text);
  CHECK_THAT(data_error([] { parse_manifest("", "state.json"); }), ContainsSubstring("state.json"));
  CHECK_THAT(data_error([] { parse_manifest("{\"format\": 3}", "state.json"); }),
             ContainsSubstring("format 3") && ContainsSubstring("formats 1 and 2"));
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& damaged : {"{\"format\": " + deep + "}", text + std::string(1, '\0')})
    CHECK_THAT(data_error([&] { parse_manifest(damaged, "state.json"); }),
               ContainsSubstring("not a JSON object"));
  std::string changed = text;
  changed.replace(changed.find("\"step\": 7"), 9, "\"step\": 8");
  CHECK_THAT(data_error([&] { parse_manifest(changed, "state.json"); }), ContainsSubstring("checksum"));
  manifest.files[0].name = "../../etc/passwd";
  CHECK_THAT(data_error([&] { parse_manifest(manifest_text(manifest), "state.json"); }),
             ContainsSubstring("plain file name"));
}

TEST_CASE("manifest: pieces come back as they were; those that do not cover their file once are refused") {
  Manifest manifest;
  manifest.files = {{"model.safetensors", 100, {{0, 60, "a"}, {60, 40, "b"}}},
                    {"optimizer.safetensors", 7, {{0, 7, "c"}}}};
  const std::string text = manifest_text(manifest);
  const Manifest back = parse_manifest(text, "state.json");
  REQUIRE(back.files.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(back.files[i].name == manifest.files[i].name);
    CHECK(back.files[i].bytes == manifest.files[i].bytes);
    CHECK(back.files[i].pieces == manifest.files[i].pieces);
  }
  CHECK(manifest_text(back) == text);
  const nlohmann::json whole = nlohmann::json::parse(text);
  CHECK(whole["format"] == 2);  // which older programs refuse by its number
  CHECK_FALSE(whole["files"][1].contains("xxh3_64"));

  const std::vector<std::pair<std::string, std::string>> faults = {
      {"/files/0/pieces/1/offset", "61"},
      {"/files/0/pieces/1/offset", "59"},
      {"/files/0/pieces/1/offset", "0"},
      {"/files/0/pieces/1/offset", "-60"},
      {"/files/0/pieces/1/offset", "\"60\""},
      {"/files/0/pieces/1/bytes", "39"},
      {"/files/0/pieces/1/bytes", "41"},
      {"/files/0/pieces/1/bytes", "4611686018427387903"},
      {"/files/0/pieces/1/bytes", "18446744073709551556"},  // 2^64 - 60
      {"/files/0/pieces/0/bytes", "0"},
      {"/files/0/pieces/1/xxh3_64", "7"},
      {"/files/0/pieces/1", "null"},
      {"/files/0/pieces", "[]"},
      {"/files/0/pieces", "{}"},
      {"/files/0/pieces",
       R"([{"offset":60,"bytes":40,"xxh3_64":"b"},{"offset":0,"bytes":60,"xxh3_64":"a"}])"},
      {"/files/0/pieces", R"([{"offset":0,"bytes":60,"xxh3_64":"a"}])"},
      {"/files/0/pieces",
       R"([{"offset":0,"bytes":100,"xxh3_64":"a"},{"offset":100,"bytes":0,"xxh3_64":"b"}])"},
      {"/files/0", R"({"name":"model.safetensors","bytes":100,"xxh3_64":"a"})"},
      {"/files/0", R"({"name":"model.safetensors","bytes":0,"pieces":[]})"},
      {"/files/0", "[]"},
      {"/format", "1"},
      {"/format", "true"},
  };
  for (const auto& [place, value] : faults) {
    INFO(place << " = " << value);
    nlohmann::json json = whole;
    json[nlohmann::json::json_pointer(place)] = nlohmann::json::parse(value);
    json.erase("xxh3_64");
    json["xxh3_64"] = checksum_of(json.dump());
    CHECK_THAT(data_error([&] { parse_manifest(json.dump(), "state.json"); }),
               ContainsSubstring("state.json: "));
  }
}

TEST_CASE("manifest: one of an older version has read train.batch sequences a step, of data unknown") {
  Manifest manifest;
  manifest.state = {.step = 7, .sequences = 1, .tokens = 1, .updates = 6, .seconds = 1.25, .loss = 3.5};
  manifest.config = "[data]\nseq_len = 16\n[train]\nbatch = 4\nmicro_batch = 2\n[eval]\nbatches = 3\n";
  nlohmann::json json = nlohmann::json::parse(manifest_text(manifest));
  for (const char* name : {"sequences", "tokens", "best_loss", "latest_losses", "data", "xxh3_64"})
    json.erase(name);
  json["xxh3_64"] = checksum_of(json.dump());
  const Manifest old = parse_manifest(json.dump(), "state.json");
  CHECK(old.state.step == 7);
  CHECK(old.state.sequences == 7 * 4);
  CHECK(old.state.tokens == 7 * 4 * 16);
  CHECK(std::isnan(old.state.best_loss));
  CHECK(old.state.latest_losses.empty());
  CHECK(old.data.training.empty());

  json.erase("xxh3_64");
  json["step"] = (std::int64_t{1} << 61);
  json["xxh3_64"] = checksum_of(json.dump());
  CHECK_THAT(data_error([&] { parse_manifest(json.dump(), "state.json"); }), ContainsSubstring("'step'"));
}

TEST_CASE("trainer: a resumed run remembers its spike window, its skips in a row and its losses") {
  Run run;
  const fs::path folder = run.save(3);
  const auto source = open_training_source(run.config);
  for (const char* setting :
       {"train.spike_z=2", "train.spike_window=2", "train.max_skips=1000", "train.steps=1000"})
    apply_setting(run.config, setting);
  const RunState state{.step = 3,
                       .consecutive_skips = 4,
                       .spike_window = {1e-3, 1e-3, 1e-3, 1e-3},  // any step is a spike after these
                       .best_loss = -100,                         // and far above this
                       .latest_losses = std::vector<double>(DivergenceWatch::window - 1, 0.0)};
  Trainer trainer(run.config, *run.device, *source, nullptr, state);
  trainer.allocate();
  trainer.restore(folder);
  const StepResult first = one_step(trainer);
  CHECK(first.scalars.skip_update == StepState::spike);
  CHECK(first.scalars.consecutive_skips == 5);
  CHECK(trainer.state().spike_window == state.spike_window);
  CHECK(first.divergence);
  CHECK(trainer.state().latest_losses.back() == first.scalars.loss);
}

namespace {
// Leaves every third target in the loss.
class MaskedSource final : public TokenSource {
 public:
  explicit MaskedSource(std::unique_ptr<TokenSource> inner) : inner_(std::move(inner)) {}
  std::string description() const override { return inner_->description(); }
  std::uint64_t sequences() const override { return inner_->sequences(); }
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) override {
    inner_->read(index, inputs, targets);
    for (std::size_t t = 0; t < targets.size(); ++t)
      if (t % 3 != 0) targets[t] = -1;
  }

 private:
  std::unique_ptr<TokenSource> inner_;
};
}  // namespace

TEST_CASE("trainer: a step's loss is the mean over its counted targets, as a validation's is") {
  Config config = tiny_config();
  apply_setting(config, "eval.tokens=16");  // the two sequences of a step
  const auto device = open_device("cpu");
  MaskedSource source(open_training_source(config));
  Trainer trainer(config, *device, source, &source);
  trainer.allocate();
  trainer.initialize();
  const std::optional<double> validation = trainer.validate();
  REQUIRE(validation);
  CHECK(static_cast<double>(one_step(trainer).scalars.loss) == Approx(*validation).epsilon(1e-6));
}
