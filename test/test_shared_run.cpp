// A run's folder among several ranks: who sees it, what it refuses, where it resumes. The ranks are threads
// of one process.

#include "train/run/shared_run.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "data/data_error.h"
#include "kernels/open/open_device.h"
#include "test/catch.h"
#include "test/rank_threads.h"
#include "test/temporary_folder.h"
#include "train/files/files.h"
#include "train/run/checkpoint.h"

using namespace goat;
using goat::test::ranks_of;
using goat::test::RankSetup;
using goat::test::run_ranks;
using goat::test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

// How the start of a rank ended.
struct Start {
  std::string config_error, data_error, resumed;
  bool has_folder = false, lock_was_there = false;
};

std::vector<Start> start(const std::vector<fs::path>& views, ExistingRun existing) {
  std::vector<Start> starts(views.size());
  std::vector<RankSetup> setups = ranks_of(static_cast<int>(views.size()));
  for (std::size_t rank = 0; rank < setups.size(); ++rank)
    setups[rank].options.self.host = "host-" + std::to_string(rank);
  const auto meetings = run_ranks(setups, [&](RankGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Start& own = starts[rank];
    try {
      SharedRun run(views[rank], existing, group);
      own.has_folder = run.folder() != nullptr;
      own.lock_was_there = fs::exists(run.path() / ".lock");
      if (run.resumed()) own.resumed = run.resumed()->folder.string();
      if (run.folder() && run.folder()->resumed().has_value() != run.resumed().has_value())
        throw std::logic_error("the folder does not know the checkpoint");
      group.gather("the folder is still needed", "");
    } catch (const ConfigError& error) {
      own.config_error = error.what();
    } catch (const DataError& error) {
      own.data_error = error.what();
    }
    group.finish();
  });
  for (const auto& meeting : meetings) CHECK((meeting.met && meeting.error.empty()));
  return starts;
}

// A run with these checkpoints of a model of one number.
void make_run(const fs::path& run, const std::vector<std::int64_t>& steps) {
  const auto device = open_device("cpu");
  ParameterSet parameters;
  MemoryPlan memory;
  parameters.declare("a", {1}, ParameterRole::vector, {.constant = 1});
  parameters.plan(memory, true);
  memory.allocate(*device);
  parameters.bind();
  parameters.initialize(*device, 1);
  RankGroup alone(Launch{}, {});
  for (const std::int64_t step : steps)
    save_checkpoint(run, Config{}, {.step = step}, {}, *device, parameters, alone);
  write_file_atomically(run / "config.toml", to_toml(Config{}));
}

}  // namespace

TEST_CASE("shared run: rank 0 makes and locks the folder that all see, and an unused one goes away") {
  const TemporaryFolder parent;
  const fs::path run = parent.path() / "a/run";
  const std::vector<Start> starts = start({run, run, parent.path() / "a/../a/run"}, ExistingRun::refuse);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(starts[rank].has_folder == (rank == 0));
    CHECK(starts[rank].lock_was_there);
    CHECK(starts[rank].resumed.empty());
  }
  CHECK(fs::is_empty(parent.path()));
}

TEST_CASE(
    "shared run: a folder that is not there on a host, or is another one, is refused naming both hosts") {
  const TemporaryFolder parent;
  const fs::path run = parent.path() / "run", missing = parent.path() / "missing",
                 other = parent.path() / "other";
  fs::create_directory(other);
  std::ofstream(other / ".lock") << "process 1 on host host-2\n0123456789abcdef0123456789abcdef\n";
  const std::vector<Start> starts = start({run, missing, other, run}, ExistingRun::refuse);
  for (const Start& rank : starts) {
    CHECK(rank.config_error == starts[0].config_error);
    CHECK_THAT(rank.config_error,
               ContainsSubstring("the run folder " + run.string() +
                                 " of rank 0 (host host-0) is not there on host host-1 as " +
                                 missing.string() + ": it must be on a file system that all hosts share") &&
                   ContainsSubstring("is not there on host host-2 as " + other.string()) &&
                   !ContainsSubstring("host host-3"));
  }
  CHECK_FALSE(fs::exists(run));
}

TEST_CASE("shared run: a folder that a host sees late is waited for") {
  const TemporaryFolder parent;
  const fs::path run = parent.path() / "run", late = parent.path() / "late";
  std::thread mount([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    fs::create_directory_symlink(run, late);
  });
  const std::vector<Start> starts = start({run, late}, ExistingRun::refuse);
  mount.join();
  CHECK(starts[1].config_error.empty());
  CHECK(starts[1].lock_was_there);
}

TEST_CASE("shared run: what rank 0 refuses, all refuse") {
  const TemporaryFolder run;
  make_run(run.path(), {1});
  const std::vector<fs::path> views(3, run.path());
  for (const Start& rank : start(views, ExistingRun::refuse)) {
    CHECK_THAT(rank.config_error, ContainsSubstring("holds another run; give --resume"));
    CHECK_THAT(rank.config_error, !ContainsSubstring("rank 0"));
  }
  const RunLock held(run.path());
  for (const Start& rank : start(views, ExistingRun::resume))
    CHECK_THAT(rank.config_error, ContainsSubstring("is training there"));
}

TEST_CASE("shared run: all ranks resume from the same checkpoint, or none does") {
  const TemporaryFolder run;
  make_run(run.path(), {1, 2});
  const fs::path checkpoints = run.path() / "checkpoints";
  fs::create_directory(checkpoints / ".step_00000007");
  const std::vector<fs::path> views(3, run.path());
  for (const Start& rank : start(views, ExistingRun::resume))
    CHECK(rank.resumed == (checkpoints / "step_00000002").string());
  CHECK_FALSE(fs::exists(checkpoints / ".step_00000007"));
  fs::resize_file(checkpoints / "step_00000002/optimizer.safetensors", 20);
  for (const Start& rank : start(views, ExistingRun::resume))
    CHECK(rank.resumed == (checkpoints / "step_00000001").string());
  fs::resize_file(checkpoints / "step_00000001/model.safetensors", 20);
  for (const Start& rank : start(views, ExistingRun::resume)) {
    CHECK(rank.resumed.empty());
    CHECK_THAT(rank.data_error, ContainsSubstring("none of the checkpoints"));
  }
  for (const Start& rank : start(views, ExistingRun::overwrite))
    CHECK((rank.config_error + rank.data_error + rank.resumed).empty());
  fs::remove_all(checkpoints);
  for (const Start& rank : start(views, ExistingRun::resume))
    CHECK((rank.config_error + rank.data_error + rank.resumed).empty());
}
