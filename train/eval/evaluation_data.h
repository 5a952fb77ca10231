// EvaluationData: the data on which a trained model is evaluated or probed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "train/run/trained_model.h"

namespace goat {

class EvaluationData {
 public:
  // `patterns`: the --data arguments, glob patterns or files. Empty: the run's own validation data, which are
  // found from any folder (RunPaths); prints a warning if they have changed since training. Throws
  // ConfigError if the patterns do not fit the run, and DataError if no file matches.
  EvaluationData(const SavedModel& model, const std::vector<std::string>& patterns);

  bool none() const { return !generated_ && files_.empty(); }   // the run has no validation data
  bool generated() const { return generated_; }                 // the data come from a built-in task
  const std::string& name() const { return config_.data.val; }  // name of the shards, for the user

  bool has_answers() const;  // they come from a retrieval task

  // The data as sequences of `length` tokens. Throws DataError. For a retrieval task, all samples at `depth`
  // if it is given; throws ConfigError if `length` is too short for it.
  std::unique_ptr<TokenSource> open(std::int64_t length, std::optional<double> depth = {}) const;

 private:
  Config config_;
  bool generated_;
  std::vector<std::string> files_;
};

}  // namespace goat
