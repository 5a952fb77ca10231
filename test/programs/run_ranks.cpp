// Ranks that do nothing but meet, exchange and fail, for test_ranks.py and test_local_launcher.py.
//   run_ranks launch N COMMAND...      run_ranks_here()
//   run_ranks take [NAME=VALUE...]     one rank, as the environment says
//     steps, step_ms; start_ms, announce_ms, beat_ms, heartbeat_ms, progress_ms, long_ms (limits); config (a
//     field) fault=WHAT fault_rank=R place=PLACE: at PLACE (start, met, step, save, end) of rank R
//       exit, throw, kill (SIGKILL), stop (SIGSTOP), hang, alarm (dies 0.3 s later), leave (without finish)
//     late_ms late_rank: this rank comes later
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "train/ranks/launch.h"
#include "train/ranks/local_launcher.h"
#include "train/ranks/rank_group.h"
#include "train/ranks/ranks_error.h"

namespace {

using Settings = std::map<std::string, std::string>;

constexpr goat::Phase training{"train"}, saving{"save", true};

int number(const Settings& settings, const char* name, int otherwise) {
  const auto found = settings.find(name);
  return found == settings.end() ? otherwise : std::stoi(found->second);
}

std::string word(const Settings& settings, const char* name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "" : found->second;
}

class Rank {
 public:
  explicit Rank(Settings settings)
      : settings_(std::move(settings)), launch_(goat::launch_of(goat::environment_of_process())) {}

  int run() {
    try {
      take_part();
      return 0;
    } catch (const goat::RanksError& error) {
      std::fprintf(stderr, "error: %s\n", error.what());
      return error.code;
    } catch (const std::exception& error) {
      if (group_) group_->fail(error.what(), 3);
      std::fprintf(stderr, "error: %s\n", error.what());
      return 3;
    }
  }

 private:
  void take_part() {
    fault_at("start");
    if (number(settings_, "late_rank", -1) == launch_.rank) pause_for("late_ms", 0);
    group_ = std::make_unique<goat::RankGroup>(
        launch_, std::vector<goat::Field>{{"config", word(settings_, "config")}}, options());
    std::printf("met %d of %d\n", group_->rank(), group_->size());
    std::fflush(stdout);
    fault_at("met");
    for (int step = 1; step <= number(settings_, "steps", 10); ++step) take_step(step);
    fault_at("end");
    group_->finish();
    std::printf("done %d\n", group_->rank());
  }

  void take_step(int step) {
    group_->enter(training);
    group_->at(step);
    pause_for("step_ms", 10);
    if (step == 5) fault_at("step");
    group_->enqueued(static_cast<std::uint64_t>(step));
    const auto parts = group_->gather("step", std::to_string(group_->rank() * step));
    for (int rank = 0; rank < group_->size(); ++rank)
      if (parts.at(static_cast<std::size_t>(rank)) != std::to_string(rank * step))
        throw std::logic_error("gather mixed up the ranks");
    group_->finished(static_cast<std::uint64_t>(step));
    if (step % 5) return;
    group_->enter(saving);
    fault_at("save");
    if (const std::string objections = group_->agree("save", ""); !objections.empty())
      throw std::logic_error(objections);
  }

  goat::RankGroupOptions options() const {
    using Time = std::chrono::milliseconds;
    goat::RankGroupOptions options;
    options.start_timeout = Time(number(settings_, "start_ms", 20'000));
    options.announce_interval = Time(number(settings_, "announce_ms", 10'000));
    options.limits.beat_interval = Time(number(settings_, "beat_ms", 100));
    options.limits.heartbeat_timeout = Time(number(settings_, "heartbeat_ms", 20'000));
    options.limits.progress_timeout = Time(number(settings_, "progress_ms", 20'000));
    options.limits.long_progress_timeout = Time(number(settings_, "long_ms", 60'000));
    return options;
  }

  void pause_for(const char* name, int otherwise) const {
    std::this_thread::sleep_for(std::chrono::milliseconds(number(settings_, name, otherwise)));
  }

  void fault_at(const std::string& place) {
    if (word(settings_, "place") != place || number(settings_, "fault_rank", -1) != launch_.rank) return;
    const std::string fault = word(settings_, "fault");
    if (fault == "exit") std::_Exit(5);
    if (fault == "throw") throw std::runtime_error("shard_7.bin: row 12 is damaged");
    if (fault == "kill") ::raise(SIGKILL);
    if (fault == "stop") ::raise(SIGSTOP);
    if (fault == "alarm") ::ualarm(300'000, 0);
    while (fault == "hang") ::pause();
    if (fault == "leave") {
      group_.reset();
      std::exit(0);
    }
  }

  Settings settings_;
  goat::Launch launch_;
  std::unique_ptr<goat::RankGroup> group_;
};

int launch(int argc, char** argv) {
  goat::LocalLaunch local;
  local.ranks = std::atoi(argv[2]);
  local.command.assign(argv + 3, argv + argc);
  local.patience = std::chrono::milliseconds(700);
  local.grace = std::chrono::milliseconds(700);
  return goat::run_ranks_here(local, goat::environment_of_process());
}

int run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "launch" && argc > 3) return launch(argc, argv);
  Settings settings;
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) throw goat::RanksError(text + ": NAME=VALUE is expected", 2);
    settings[text.substr(0, equals)] = text.substr(equals + 1);
  }
  if (what == "take") return Rank(std::move(settings)).run();
  throw goat::RanksError("run_ranks launch N COMMAND... | take [NAME=VALUE...]", 2);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const goat::RanksError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.code;
  }
}
