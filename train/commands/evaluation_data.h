// EvaluationData: the data on which a trained model is evaluated or probed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/run/trained_model.h"

namespace goat {

class EvaluationData {
 public:
  // `patterns`: what the user names with --data, globs or files; none: the run's own validation data, found
  // from whatever folder (RunPaths); a warning says if those have changed since. Throws ConfigError where
  // patterns do not go with the run, DataError where no file matches.
  EvaluationData(const TrainedModel& model, const std::vector<std::string>& patterns);

  bool none() const { return !generated_ && files_.empty(); }   // the run has no validation data
  bool generated() const { return generated_; }                 // by a built-in task
  const std::string& name() const { return config_.data.val; }  // of the shards, for people

  // Sequences of `length` tokens. Throws DataError.
  std::unique_ptr<TokenSource> open(std::int64_t length) const;

 private:
  Config config_;
  bool generated_;
  std::vector<std::string> files_;
};

}  // namespace goat
