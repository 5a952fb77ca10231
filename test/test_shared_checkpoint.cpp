// Checkpoints that several ranks write, verify and read together. The ranks are threads of one process.

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data/data_error.h"
#include "test/catch.h"
#include "test/failing_device.h"
#include "test/rank_threads.h"
#include "test/temporary_folder.h"
#include "test/three_units.h"
#include "train/files/files.h"
#include "train/run/checkpoint.h"
#include "train/run/newest_checkpoint.h"

using namespace goat;
using goat::test::FailingDevice;
using goat::test::ranks_of;
using goat::test::run_ranks;
using goat::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

constexpr std::array kinds = {ParameterSet::Kind::value, ParameterSet::Kind::m, ParameterSet::Kind::v};
constexpr std::array tensor_files = {"model.safetensors", "optimizer.safetensors"};

// A rank's share of a small model.
struct Share {
  FailingDevice device;
  ParameterSet parameters;
  MemoryPlan memory;

  Share(DType dtype, int rank, int ranks, std::int64_t bucket = 70'000) : parameters(dtype) {
    goat::test::declare_three_units(parameters);
    parameters.plan(memory, true, {rank, ranks, bucket});
    memory.allocate(device);
    parameters.bind();
  }

  static float element(std::size_t kind, std::size_t tensor, std::int64_t index) {
    return 0.001f * static_cast<float>(index) + 7.0f * static_cast<float>(tensor) -
           static_cast<float>(1000 * kind);
  }
  void fill() {
    for (std::size_t k = 0; k < kinds.size(); ++k)
      for (std::size_t t = 0; t < parameters.stored().size(); ++t)
        parameters.write_pieces(device, parameters.stored()[t], kinds[k],
                                [&](std::int64_t first, std::span<float> elements) {
                                  for (float& value : elements) value = element(k, t, first++);
                                });
  }
  // Throws if an element of this rank is not what fill() writes; returns their number.
  std::size_t check() {
    std::size_t count = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k)
      for (std::size_t t = 0; t < parameters.stored().size(); ++t)
        parameters.read_pieces(device, parameters.stored()[t], kinds[k],
                               [&](std::int64_t first, std::span<const float> elements) {
                                 count += elements.size();
                                 for (const float value : elements)
                                   if (value != element(k, t, first++))
                                     throw std::runtime_error("another value");
                               });
    return count;
  }
};

constexpr std::size_t all_elements = 3 * (180 * 300 + 333 * 211 + 77 + 5);

// How a rank's call ended.
struct Ending {
  std::string result, error;
  bool device_lost = false, bad_data = false, bad_config = false;
};

// call(group) on each of so many ranks, which then go on to their orderly end.
template <class Call>
std::vector<Ending> on_ranks(int ranks, Call call) {
  std::vector<Ending> endings(static_cast<std::size_t>(ranks));
  const auto meetings = run_ranks(ranks_of(ranks), [&](RankGroup& group) {
    Ending& ending = endings[static_cast<std::size_t>(group.rank())];
    try {
      ending.result = call(group);
    } catch (const std::runtime_error& error) {
      ending = {"", error.what(), dynamic_cast<const DeviceLost*>(&error) != nullptr,
                dynamic_cast<const DataError*>(&error) != nullptr,
                dynamic_cast<const ConfigError*>(&error) != nullptr};
    }
    group.finish();
  });
  for (const auto& meeting : meetings) {
    INFO(meeting.error << meeting.said);
    CHECK((meeting.met && meeting.error.empty() && meeting.failures.empty()));
  }
  return endings;
}

// What the ranks did otherwise than asked, before a save: rank -> its view of the run folder, its device.
struct Plant {
  std::function<fs::path(int rank)> view{};
  std::function<void(int rank, FailingDevice&)> device = [](int, FailingDevice&) {};
};

std::vector<Ending> save(const fs::path& run, int ranks, std::int64_t step, DType dtype = DType::f32,
                         const Plant& plant = {}) {
  return on_ranks(ranks, [&](RankGroup& group) {
    Share share(dtype, group.rank(), ranks);
    share.fill();
    share.device.calls = 0;
    plant.device(group.rank(), share.device);
    const fs::path view = plant.view ? plant.view(group.rank()) : run;
    return save_checkpoint(view, Config{}, {.step = step, .loss = 1.5}, {}, share.device, share.parameters,
                           group)
        .string();
  });
}

fs::path folder_of(const fs::path& run, std::int64_t step) {
  return run / "checkpoints" / ("step_0000000" + std::to_string(step));
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) names.insert(entry.path().filename());
  return names;
}

// All ranks threw the same, which names the ranks and holds the words.
void check_refused(const std::vector<Ending>& endings, const std::vector<int>& ranks,
                   const std::vector<std::string>& words) {
  for (const Ending& ending : endings) {
    INFO(ending.result << ending.error);
    CHECK(ending.error == endings[0].error);
    for (std::size_t rank = 0; rank < endings.size(); ++rank)
      CHECK((ending.error.find("rank " + std::to_string(rank) + " (host ") != std::string::npos) ==
            (std::ranges::count(ranks, static_cast<int>(rank)) > 0));
    for (const std::string& word : words) CHECK_THAT(ending.error, ContainsSubstring(word));
  }
}

void change_byte(const fs::path& path, std::uint64_t position) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(position));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(position));
  file.put(byte);
}

}  // namespace

TEST_CASE("shared checkpoint: the files of any number of ranks are byte for byte those of one") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const TemporaryFolder run;
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (const Ending& ending : save(run.path(), ranks, ranks, dtype))
      CHECK(ending.result == folder_of(run.path(), ranks).string());
  CHECK(names_in(run.path() / "checkpoints").size() == 4);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    INFO(ranks << " ranks");
    const fs::path folder = folder_of(run.path(), ranks);
    CHECK(names_in(folder) ==
          std::set<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"});
    const Manifest manifest = verify_checkpoint(folder);
    CHECK(manifest.state.step == ranks);
    CHECK(manifest.state.loss == 1.5);
    const std::string text = read_small_file(folder / "state.json");
    CHECK_THAT(text, ContainsSubstring(ranks == 1 ? "\"format\": 1" : "\"format\": 2"));
    CHECK((text.find("pieces") == std::string::npos) == (ranks == 1));
    for (std::size_t i = 0; i < tensor_files.size(); ++i) {
      std::string bytes = read_small_file(folder / tensor_files[i]),
                  alone = read_small_file(folder_of(run.path(), 1) / tensor_files[i]);
      const std::size_t step = bytes.find("\"step\":\"");  // the header tells it
      REQUIRE(step < 300);
      bytes[step + 8] = alone[step + 8];
      CHECK(bytes == alone);
      CHECK(manifest.files.at(i).pieces.size() >= static_cast<std::size_t>(ranks));
    }
  }
}

TEST_CASE("shared checkpoint: what some ranks saved, any others read") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const TemporaryFolder run;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    save(run.path(), ranks, ranks, dtype);
    for (int others = 1; others <= 4; ++others) {
      INFO("from " << ranks << " to " << others << " ranks");
      std::vector<std::size_t> counts(static_cast<std::size_t>(others));
      const auto endings = on_ranks(others, [&](RankGroup& group) {
        Share share(dtype, group.rank(), others);
        const auto found = newest_checkpoint(
            run.path(), Needed::everything, [](const std::string&) {}, group);
        if (!found) throw std::runtime_error("none found");
        load_model(found->folder, share.device, share.parameters);
        load_optimizer(found->folder, share.device, share.parameters);
        counts[static_cast<std::size_t>(group.rank())] = share.check();
        return found->folder.string() + std::to_string(found->manifest.state.step);
      });
      for (const Ending& ending : endings)
        CHECK(ending.result == folder_of(run.path(), ranks).string() + std::to_string(ranks));
      std::size_t sum = 0;
      for (const std::size_t count : counts) sum += count;
      CHECK(sum == all_elements);
      CHECK(*std::ranges::max_element(counts) < (others == 1 ? all_elements + 1 : all_elements * 2 / 3));
    }
  }
}

TEST_CASE(
    "shared checkpoint: where one rank fails, all throw its reason, nothing is left, and the next succeeds") {
  const TemporaryFolder run;
  save(run.path(), 3, 1);
  const int culprit = GENERATE(0, 1, 2);
  const bool replaces = GENERATE(false, true);
  const std::int64_t step = replaces ? 1 : 2;
  for (const long fatal : {1L, 4L}) {
    const auto endings =
        save(run.path(), 3, step, DType::f32, {.device = [&](int rank, FailingDevice& device) {
               if (rank == culprit) device.fatal = fatal;
             }});
    check_refused(endings, {culprit}, {"planted failure"});
    CHECK(names_in(run.path() / "checkpoints") == std::set<std::string>{"step_00000001"});
    verify_checkpoint(folder_of(run.path(), 1));
  }
  for (const Ending& ending : save(run.path(), 3, step))
    CHECK(ending.result == folder_of(run.path(), step).string());
}

TEST_CASE("shared checkpoint: a rank that lost its device says so itself, the others go on") {
  const TemporaryFolder run;
  const auto endings = save(run.path(), 3, 1, DType::f32, {.device = [](int rank, FailingDevice& device) {
                              if (rank == 1) device.lost_from = 2;
                            }});
  check_refused(endings, {1}, {"planted loss"});
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK(endings[rank].device_lost == (rank == 1));
}

TEST_CASE("shared checkpoint: a disk that is full on one rank drops the checkpoint on all") {
  const TemporaryFolder run, other;
  const char* file = GENERATE("model.safetensors", "optimizer.safetensors");
  const fs::path unfinished = other.path() / "checkpoints/.step_00000002";
  fs::create_directories(unfinished);
  for (const char* name : tensor_files)
    fs::create_symlink(
        std::string(name) == file ? fs::path("/dev/full") : run.path() / "checkpoints/.step_00000002" / name,
        unfinished / name);
  save(run.path(), 3, 1);
  const auto endings = save(run.path(), 3, 2, DType::f32,
                            {.view = [&](int rank) { return rank == 2 ? other.path() : run.path(); }});
  check_refused(endings, {2}, {"cannot write", file, "No space left on device"});
  CHECK(names_in(run.path() / "checkpoints") == std::set<std::string>{"step_00000001"});
}

TEST_CASE(
    "shared checkpoint: a folder that one rank cannot reach, or that rank 0 cannot make, is refused by all") {
  const TemporaryFolder run, other;
  const auto endings = save(run.path(), 3, 2, DType::f32,
                            {.view = [&](int rank) { return rank == 1 ? other.path() : run.path(); }});
  check_refused(endings, {1}, {"cannot write", other.path().string(), "No such file"});
  CHECK(names_in(run.path() / "checkpoints").empty());
  fs::remove_all(run.path() / "checkpoints");
  std::ofstream(run.path() / "checkpoints") << "a file where the folder should be";
  check_refused(save(run.path(), 3, 2), {0}, {"checkpoints"});
}

TEST_CASE("shared checkpoint: pieces that do not cover the files once are never taken for a checkpoint") {
  const TemporaryFolder run;
  const auto endings = on_ranks(2, [&](RankGroup& group) {
    Share share(DType::f32, group.rank(), 2, group.rank() == 0 ? 70'000 : 140'000);
    return save_checkpoint(run.path(), Config{}, {.step = 1}, {}, share.device, share.parameters, group)
        .string();
  });
  check_refused(endings, {0}, {"do not cover"});
  CHECK(names_in(run.path() / "checkpoints").empty());
}

TEST_CASE("shared checkpoint: rank 0 fails at the very end: the checkpoint that was there stays") {
  const TemporaryFolder run;
  save(run.path(), 2, 1);
  fs::create_directories(run.path() / "checkpoints/.step_00000001.old/in the way");
  check_refused(save(run.path(), 2, 1), {0}, {"step_00000001"});
  CHECK(names_in(run.path() / "checkpoints") == std::set<std::string>{".step_00000001.old", "step_00000001"});
  verify_checkpoint(folder_of(run.path(), 1));
}

TEST_CASE(
    "shared checkpoint: damage to any piece is found by one rank and told by all; an older one is used") {
  const TemporaryFolder run;
  save(run.path(), 3, 1);
  save(run.path(), 3, 2);
  const Manifest manifest = verify_checkpoint(folder_of(run.path(), 2));
  const int ranks = GENERATE(1, 2, 4);
  std::set<std::string> finders;
  for (const Manifest::File& file : manifest.files)
    for (const FilePiece& piece : file.pieces) {
      const fs::path path = folder_of(run.path(), 2) / file.name;
      const std::uint64_t place = piece.offset + (piece.offset / 64) % piece.bytes;
      INFO(path << " byte " << place << ", " << ranks << " ranks");
      change_byte(path, place);
      std::vector<std::vector<std::string>> warnings(static_cast<std::size_t>(ranks));
      const auto endings = on_ranks(ranks, [&](RankGroup& group) {
        auto& own = warnings[static_cast<std::size_t>(group.rank())];
        const auto found = newest_checkpoint(
            run.path(), Needed::everything, [&](const std::string& text) { own.push_back(text); }, group);
        return found && found->damaged == std::vector{folder_of(run.path(), 2)} ? found->folder.string() : "";
      });
      change_byte(path, place);
      for (const Ending& ending : endings) CHECK(ending.result == folder_of(run.path(), 1).string());
      REQUIRE(warnings[0].size() == 1);
      for (std::size_t rank = 1; rank < warnings.size(); ++rank) CHECK(warnings[rank].empty());
      const std::string& warning = warnings[0][0];
      CHECK_THAT(warning,
                 ContainsSubstring(file.name + ": the checksum of bytes " + std::to_string(piece.offset) +
                                   "-" + std::to_string(piece.offset + piece.bytes - 1)));
      const std::size_t named = warning.find(" (host ");
      CHECK(named == warning.rfind(" (host "));
      finders.insert(named == std::string::npos ? "" : warning.substr(0, named));
    }
  CHECK(finders.size() == static_cast<std::size_t>(ranks));
}

TEST_CASE(
    "shared checkpoint: a state.json that is damaged, and a file that one rank does not see, are told by "
    "all") {
  const TemporaryFolder run, other;
  save(run.path(), 2, 1);
  const auto verify = [&] {
    return on_ranks(2, [&](RankGroup& group) {
      return verify_checkpoint(folder_of(group.rank() == 0 ? run.path() : other.path(), 1),
                               Needed::everything, group)
          .config;
    });
  };
  fs::create_directories(other.path() / "checkpoints");
  fs::copy(folder_of(run.path(), 1), folder_of(other.path(), 1));
  for (const Ending& ending : verify()) CHECK(ending.result == to_toml(Config{}));
  fs::remove(folder_of(other.path(), 1) / "optimizer.safetensors");
  auto endings = verify();
  check_refused(endings, {1}, {"optimizer.safetensors", "missing"});
  for (const Ending& ending : endings) CHECK(ending.bad_data);
  change_byte(folder_of(run.path(), 1) / "state.json", 100);
  endings = verify();
  check_refused(endings, {}, {"state.json", "checksum"});
  for (const Ending& ending : endings) CHECK(ending.bad_data);
}
