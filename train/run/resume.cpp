#include "train/run/resume.h"

#include <algorithm>
#include <filesystem>

#include "train/config/config_keys.h"
#include "train/config/counted.h"
#include "train/config/mixture.h"
#include "train/model/block_spec.h"
#include "train/run/run_paths.h"

namespace goat {

namespace {
Config config_of(const FoundCheckpoint& checkpoint) {
  Config config;
  apply_toml(config, checkpoint.manifest.config, (checkpoint.folder / "state.json").string() + ": config");
  return config;
}

// The same config with explicit values instead of the zeros that mean "default". Then a zero and the value
// that it stands for compare as equal.
Config with_defaults(Config config) {
  config.model.kv_heads = config.kv_heads();
  config.model.ff_width = config.ff_width();
  config.model.bias = block_spec(config).biases ? "true" : "false";
  config.prior.lane_dim = config.lane_dim();
  config.prior.sink_hidden = config.sink_hidden();
  config.train.micro_batch = config.micro_batch();
  return config;
}

// "train_000001.bin has 36000 tokens and had 1009512"
std::string difference(const std::vector<ShardRecord>& now, const std::vector<ShardRecord>& before) {
  const std::string counts =
      counted(std::ssize(before), "shard") + " before, " + counted(std::ssize(now), "shard") + " now";
  for (const ShardRecord& was : before) {
    const auto is = std::ranges::find(now, was.name, &ShardRecord::name);
    if (is == now.end()) return was.name + " is gone (" + counts + ")";
    if (is->tokens != was.tokens)
      return was.name + " has " + std::to_string(is->tokens) + " tokens and had " +
             std::to_string(was.tokens);
    if (!is->same_as(was)) return was.name + " has other contents, of as many tokens";
  }
  return counts;
}
}  // namespace

std::vector<ChangedKey> changed_keys(const Config& now, const FoundCheckpoint& checkpoint) {
  Config before = with_defaults(config_of(checkpoint)), current = with_defaults(now);
  const std::vector<Key> old_keys = config_keys(before), new_keys = config_keys(current);
  std::vector<ChangedKey> changed;
  for (std::size_t i = 0; i < new_keys.size(); ++i) {
    const std::string was = value_as_toml(old_keys[i]), is = value_as_toml(new_keys[i]);
    if (was != is) changed.push_back({new_keys[i].name, new_keys[i].on_resume, was, is});
  }
  return changed;
}

std::vector<std::string> compare_configs(const Config& now, const FoundCheckpoint& checkpoint) {
  std::vector<std::string> notes;
  for (const auto& [name, on_resume, was, is] : changed_keys(now, checkpoint)) {
    if (on_resume.kind == OnResume::silent) continue;
    if (on_resume.kind == OnResume::refused)
      throw ConfigError("--resume: " + name + " = " + is + ", but the run in the folder has " + was + ": " +
                        on_resume.reason + "; leave the key as it was, or give another --out");
    const bool begun = on_resume.kind == OnResume::begun;
    notes.push_back("resuming with " + name + " = " + is + ", which was " + was +
                    (begun ? ": no effect, only the start of a run reads it" : ""));
  }
  return notes;
}

RunState state_to_continue(const Config& now, const FoundCheckpoint& checkpoint) {
  RunState state = checkpoint.manifest.state;
  const Config before = config_of(checkpoint);
  if (now.train.spike_z != before.train.spike_z || now.train.spike_window != before.train.spike_window)
    state.loss_limit = state.grad_norm_limit = RunState::nan;
  return state;
}

std::vector<std::string> check_resume(const Config& now, const std::filesystem::path& run) {
  const auto found = newest_checkpoint(run, Needed::everything, [](const std::string&) {});
  return found ? compare_configs(now, *found) : std::vector<std::string>();
}

Config with_data_located(const Config& config, const std::filesystem::path& run, const DataRecord& data) {
  const RunPaths paths(run, data.working_folder);
  Config located = config;
  if (!config.data.train.empty()) located.data.train = paths.locate(config.data.train);
  if (!config.data.mixture.empty()) {
    std::vector<WeightedPattern> parts = parse_mixture(config.data.mixture);
    for (WeightedPattern& part : parts) part.pattern = paths.locate(part.pattern);
    located.data.mixture = mixture_text(parts);
  }
  if (!config.data.val.empty()) located.data.val = paths.locate(config.data.val);
  return located;
}

void keep_working_folder(DataRecord& now, const DataRecord& before) {
  if (!before.working_folder.empty()) now.working_folder = before.working_folder;
}

DataRecord describe_data(const TokenSource& training, const TokenSource* validation) {
  std::error_code gone;
  DataRecord data{.working_folder = std::filesystem::current_path(gone).string(),
                  .tokenizer = training.tokenizer()};
  data.training = training.shards();
  if (validation) data.validation = validation->shards();
  return data;
}

std::vector<std::string> compare_data(const DataRecord& now, const Config& config,
                                      const FoundCheckpoint& checkpoint, bool allow_changed_data) {
  const DataRecord& before = checkpoint.manifest.data;
  const Config old_config = config_of(checkpoint);
  std::vector<std::string> notes;
  if (!before.training.empty() && !now.training.empty() && !same_shards(now.training, before.training)) {
    const std::string what = difference(now.training, before.training);
    if (training_patterns(config) == training_patterns(old_config) && !allow_changed_data)
      throw DataError("--resume: the training data (" +
                      (config.data.mixture.empty() ? "data.train = '" + config.data.train
                                                   : "data.mixture = '" + config.data.mixture) +
                      "') are not those the run began with: " + what +
                      ". Put the old ones back, or give --allow-changed-data to go on with these");
    notes.push_back("the training data have changed: " + what);
  }
  if (!before.tokenizer.empty() && !now.tokenizer.empty() && before.tokenizer != now.tokenizer)
    throw DataError("--resume: the run was trained on tokens of the tokenizer " + before.tokenizer +
                    ", the data are now of " + now.tokenizer);
  if (!before.validation.empty() && !now.validation.empty() &&
      !same_shards(now.validation, before.validation))
    notes.push_back("the validation data have changed, and losses cannot be compared with those before: " +
                    difference(now.validation, before.validation));
  return notes;
}

}  // namespace goat
