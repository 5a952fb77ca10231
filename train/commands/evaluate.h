// `eval`: perplexity of a trained model at a list of lengths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace goat {

struct EvalOptions {
  std::string checkpoint;             // run folder, checkpoint folder or model.safetensors
  std::vector<std::string> data;      // globs or files of shards; none: the run's validation data
  std::vector<std::int64_t> lengths;  // empty: the training length
  std::string protocol = "recut";     // recut: the same tokens cut at each length; paper: 100 sequences up to
                                      // 8k, then as many as keep 819,200 tokens
  std::optional<std::int64_t> tokens;  // recut: at most this many tokens; none: all of the data
  std::string per_token;               // .npy for the loss of every token; empty: none
  std::string json;                    // .json for the results; empty: none
};

// Prints a table of perplexities and writes what was asked for. Returns the exit code.
int run_eval(const EvalOptions& options, Device& device);

}  // namespace goat
