// `eval`: perplexity or answers of a trained model at a list of lengths.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace goat {

struct EvalOptions {
  std::string checkpoint;             // run folder, checkpoint folder or model.safetensors
  std::string precision;              // auto, fp32, bf16; empty: the run's model.precision
  std::vector<std::string> data;      // glob patterns or files of shards; empty: validation data
  std::vector<std::int64_t> lengths;  // empty: the training length
  // recut: the same tokens, cut at each length. paper: 100 sequences up to 8,192 tokens, then as many as
  // make 819,200 tokens.
  std::string protocol = "recut";
  std::optional<std::int64_t> tokens;  // recut: at most this many tokens; nullopt: all of the data
  // Of a retrieval task, each nullopt or empty: as published.
  std::optional<std::int64_t> samples;  // of each length and depth
  std::vector<double> depths;           // shares of the filler before what is to be found
  std::string per_token;                // .npy file for the loss of every token; empty: none
  std::string json;                     // .json file for the results; empty: none
};

// Prints a table of perplexities, or of the answers to a retrieval task (train/eval/retrieval.h), and writes
// the requested files. Returns the exit code.
int run_eval(const EvalOptions& options, Device& device);

}  // namespace goat
