#include "train/eval/evaluation_data.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "data/shard_source.h"
#include "train/run/run_paths.h"
#include "train/training/sources.h"

namespace goat {

namespace {
// The files of all patterns, each once, in sorted order.
std::vector<std::string> files_of(const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> matching = files_matching(pattern);
    if (matching.empty())
      throw DataError("--data '" + pattern +
                      "': no file matches; name shards, as in --data 'FOLDER/val_*.bin'");
    files.insert(files.end(), matching.begin(), matching.end());
  }
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

// "a.bin", "a.bin b.bin" or, for a long list from the shell, "a.bin ... z.bin".
std::string name_of(const std::vector<std::string>& patterns) {
  if (patterns.size() == 1) return patterns.front();
  return patterns.front() + (patterns.size() == 2 ? " " : " ... ") + patterns.back();
}

std::vector<std::string> validation_files(const std::string& pattern, const RunPaths& paths) {
  std::vector<std::string> files = files_matching(pattern);
  if (files.empty())
    throw DataError("no file matches the run's validation data, data.val = '" + pattern + "'" +
                    paths.searched(pattern) + "; name shards with --data GLOB");
  return files;
}

void warn_if_others(const std::vector<ShardRecord>& now, const std::vector<ShardRecord>& before,
                    const std::string& name, const SavedModel& model) {
  if (before.empty() || same_shards(now, before)) return;
  std::fprintf(stderr,
               "warning: the shards '%s' are not those, or no longer as they were, with which the run %s was "
               "validated during training\n",
               name.c_str(), model.run().c_str());
}
}  // namespace

EvaluationData::EvaluationData(const SavedModel& model, const std::vector<std::string>& patterns)
    : config_(model.config()), generated_(config_.data.source != "shards") {
  if (generated_ && !patterns.empty())
    throw ConfigError("--data " + patterns.front() +
                      ": the model was trained on generated data (data.source = \"" + config_.data.source +
                      "\"), and is looked at with that; leave --data out");
  if (!patterns.empty()) {
    files_ = files_of(patterns);
    config_.data.val = name_of(patterns);
  } else if (!generated_ && !config_.data.val.empty()) {
    const RunPaths paths(model.run(), model.data().working_folder);
    config_.data.val = paths.locate(config_.data.val);
    files_ = validation_files(config_.data.val, paths);
    warn_if_others(open(1)->shards(), model.data().validation, config_.data.val, model);
  }
}

bool EvaluationData::has_answers() const { return open_needle_task(config_) != nullptr; }

std::unique_ptr<TokenSource> EvaluationData::open(std::int64_t length, std::optional<double> depth) const {
  Config config = config_;
  config.data.seq_len = length;
  try {
    return depth ? open_needle_task(config, depth) : open_evaluation_source(config, files_);
  } catch (const std::invalid_argument& error) {
    throw ConfigError("length " + std::to_string(length) + ": " + error.what());
  }
}

}  // namespace goat
