#include "train/commands/start_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>

#include "data/data_error.h"
#include "kernels/cpu/arithmetic.h"
#include "train/commands/run_config.h"
#include "train/commands/version.h"
#include "train/ranks/local_launcher.h"
#include "train/ranks/ranks_error.h"
#include "train/run/checkpoint.h"

namespace goat {

namespace {
std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

RankLimits limits_of(const Config::Distributed& keys) {
  RankLimits limits;
  limits.heartbeat_timeout = milliseconds_of(keys.heartbeat_timeout);
  limits.beat_interval = std::min(limits.beat_interval, limits.heartbeat_timeout / 5);
  limits.progress_timeout = milliseconds_of(keys.progress_timeout);
  limits.long_progress_timeout = 6 * limits.progress_timeout;
  return limits;
}

// What the user should do after a failure.
std::string advice_after_failure(const std::filesystem::path& folder) {
  const std::vector<std::filesystem::path> checkpoints = checkpoint_folders(folder);
  if (checkpoints.empty()) return "The run in " + folder.string() + " has no checkpoint.";
  return "Newest checkpoint: " + checkpoints.front().string() +
         "; the same command with --resume continues from it.";
}

// "torchrun has started 4 ranks"
std::string started_by(const Launch& launch) {
  return (launch.launcher == "variables" ? "RANK and WORLD_SIZE say that a launcher" : launch.launcher) +
         " has started " + std::to_string(launch.size) + " ranks";
}

bool trains(const TrainOptions& options) {
  return !options.list_configs && !options.print_config && !options.dry_run && options.profile == 0;
}
}  // namespace

std::optional<int> run_copies(const CommandLine& line, int argc, char** argv) {
  const Environment environment = environment_of_process();
  const auto* training = std::get_if<TrainOptions>(&line.command);
  if (!training || !trains(*training)) {
    if (const Launch launch = launch_if_clear(environment); launch.size > 1)
      throw ConfigError("this command is for one process, but " + started_by(launch) +
                        "; only training takes several");
    return std::nullopt;
  }
  const Launch launch = launch_of(environment);
  if (training->ranks == 0 || started_here(environment)) return std::nullopt;
  if (launch.size > 1)
    throw ConfigError("--ranks " + std::to_string(training->ranks) + ": " + started_by(launch) +
                      " already; leave --ranks out");
  if (training->ranks == 1) return std::nullopt;
  require_config_for_ranks(*training);
  LocalLaunch local;
  local.ranks = static_cast<int>(training->ranks);
  local.command.assign(argv, argv + argc);
  local.command.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return run_ranks_here(local, without_launch(environment));
}

Ranks meet_ranks_of_run(const Config& config, const TrainOptions& options,
                        const std::filesystem::path& folder) {
  const Launch launch = launch_of(environment_of_process());
  RankGroupOptions group;
  group.start_timeout = milliseconds_of(config.distributed.start_timeout);
  group.limits = limits_of(config.distributed);
  // Another thread may hold the locks of stdout and stderr for ever.
  group.on_failure = [folder, rank = launch.rank](const Failure& failure) {
    const int speaker = failure.rank == 0 ? 1 : 0;  // rank 0 may be gone
    const bool wrong_command = failure.code == 2;   // which no --resume would change
    const std::string advice = rank == speaker && !wrong_command ? advice_after_failure(folder) + "\n" : "";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, advice.data(), advice.size());
    ::_exit(failure.code);
  };
  const std::string start = options.resume ? "--resume" : options.overwrite ? "--overwrite" : "a new run";
  return meet_ranks(launch,
                    {{"program", build_text()},
                     {"arithmetic", cpu_arithmetic()},
                     {"run folder", folder.string()},
                     {"start", start + (options.allow_changed_data ? " --allow-changed-data" : "")},
                     {"config", to_toml(config)}},
                    std::move(group));
}

bool started_as_first() { return launch_if_clear(environment_of_process()).rank == 0; }

int exit_code_of(const std::exception& error) {
  if (const auto* ranks = dynamic_cast<const RanksError*>(&error)) return ranks->code;
  if (dynamic_cast<const ConfigError*>(&error)) return 2;
  return dynamic_cast<const DataError*>(&error) ? 3 : 1;
}

void end_all_ranks(RankGroup& group, const std::exception& error) {
  if (const auto* lost = dynamic_cast<const RankLost*>(&error)) return group.lost(lost->rank, lost->what());
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  group.fail(memory ? "out of memory on the host" : error.what(), exit_code_of(error));
}

}  // namespace goat
