#include "train/commands/run_config.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "train/replicas/leaves.h"
#include "train/replicas/on_all_ranks.h"
#include "train/run/find_model.h"
#include "train/run/run_folder.h"

namespace goat {

namespace {
// What the run that is resumed has chosen for itself; 0 if the folder holds none.
struct Choices {
  std::int64_t micro_batch = 0, leaves = 0;
};

Choices choices_before(const TrainOptions& options) {
  const std::filesystem::path own = config_of_run(run_folder(options));
  if (!options.resume || own.empty()) return {};
  try {
    const Config before = load_config(own.string(), {});
    return {before.train.micro_batch, before.distributed.leaves};
  } catch (const ConfigError&) {  // not a run: RunFolder says so
    return {};
  }
}

MicroBatchChoice completed(const Config& config, const Choices& before, const Device& device,
                           std::size_t bytes, int ranks) {
  return choose_micro_batch(with_leaves(config, ranks, before.leaves), device, bytes, before.micro_batch,
                            ranks);
}
}  // namespace

std::filesystem::path run_folder(const TrainOptions& options) {
  if (!options.out.empty()) return options.out;
  const std::filesystem::path config = options.config;
  if (config.filename() == "config.toml")  // a run's own config: that run
    return config.has_parent_path() ? config.parent_path() : std::filesystem::path(".");
  return std::filesystem::path("runs") / config.stem();
}

Config chosen_config(const TrainOptions& options, const ConfigNotes& note) {
  if (!options.config.empty()) return load_config(options.config, options.settings, note);
  const std::filesystem::path own = options.resume ? config_of_run(run_folder(options)) : "";
  if (own.empty() && !options.init_from.empty())
    return read_config(config_of_model(options.init_from, "--init-from"), options.init_from + ": config",
                       options.settings, note);
  if (own.empty())
    throw ConfigError("--resume --out " + options.out +
                      ": there is no run to continue (no config.toml); to begin one, give --config");
  return load_config(own.string(), options.settings, note);
}

Config config_to_complete(const TrainOptions& options, const ConfigNotes& note) {
  TrainOptions free = options;
  if (options.config.empty())
    free.settings.insert(free.settings.begin(), {"train.micro_batch=0", "distributed.leaves=0"});
  return chosen_config(free, note);
}

MicroBatchChoice config_of_ranks(const Config& config, const TrainOptions& options, const Device& device,
                                 Ranks& ranks) {
  const std::size_t bytes = smallest_share(device, *ranks.group);
  MicroBatchChoice choice{config, ""};
  std::int64_t &leaves = choice.config.distributed.leaves, &micro_batch = choice.config.train.micro_batch;
  std::istringstream chosen(on_rank_0(*ranks.group, "leaves and micro-batch", [&] {
    const MicroBatchChoice own = completed(config, choices_before(options), device, bytes, ranks.size());
    return std::to_string(own.config.distributed.leaves) + " " +
           std::to_string(own.config.train.micro_batch) + " " + own.origin;
  }));
  chosen >> leaves >> micro_batch >> std::ws;
  std::getline(chosen, choice.origin);
  return choice;
}

void require_config_for_ranks(const TrainOptions& options) {
  with_leaves(config_to_complete(options, {}), planned_ranks(options), choices_before(options).leaves);
}

int planned_ranks(const TrainOptions& options) {
  return static_cast<int>(std::max<std::int64_t>(options.ranks, 1));
}

MicroBatchChoice planned_config(const TrainOptions& options, const Device& device, const ConfigNotes& note) {
  const int ranks = planned_ranks(options);
  const auto sharing = static_cast<std::size_t>(sharing_memory(device, ranks));
  return completed(config_to_complete(options, note), choices_before(options), device,
                   usable_memory(device) / sharing, ranks);
}

}  // namespace goat
