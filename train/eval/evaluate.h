// `eval`: perplexity or answers of trained models at a list of lengths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace goat {

struct EvalOptions {
  std::vector<std::string> checkpoints;  // each a run folder, a checkpoint folder or model.safetensors
  std::string precision;                 // auto, fp32, bf16; empty: the run's model.precision
  std::vector<std::int64_t> lengths;     // empty: the training length; of a retrieval task: as published
  std::string json;                      // .json file for the results; empty: none
  std::vector<std::string> arguments;    // the program's, for that file

  // Of perplexities.
  std::vector<std::string> data;  // glob patterns or files of shards; empty: validation data
  // recut (or empty): the same tokens, cut at each length. paper: 100 sequences up to 8,192 tokens, then as
  // many as make 819,200 tokens. both: by the one and by the other.
  std::string protocol;
  std::optional<std::int64_t> tokens;  // recut: at most this many tokens; nullopt: all of the data
  std::string per_token;               // .npy file for the loss of every token; empty: none

  // Of a retrieval task, each nullopt or empty: as published.
  std::optional<std::int64_t> samples;  // of each length and depth
  std::vector<double> depths;           // shares of the filler before what is to be found
};

// Prints a table for each evaluation (train/eval/perplexity.h, train/eval/retrieval.h), and one that compares
// them if there are several; writes the requested files. An option applies to the runs that it fits, and must
// fit one. All is checked before the first weights are loaded; one model is in memory at a time. Returns the
// exit code. Throws ConfigError and DataError.
int run_eval(const EvalOptions& options, Device& device);

}  // namespace goat
