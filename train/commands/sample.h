// `sample`: text from a trained model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/device.h"

namespace goat {

struct SampleOptions {
  std::string checkpoint;             // run folder, checkpoint folder or model.safetensors
  std::optional<std::string> prompt;  // "-": stdin
  std::string prompt_file;            // instead of it; "-": stdin
  std::int64_t tokens = 200;          // to generate
  std::int64_t samples = 1;           // continuations of the prompt, number i (from 0 on) with seed + i
  double temperature = 1.0;           // 0: the most likely token always
  std::int64_t top_k = 0;             // 0: off
  double top_p = 1.0;                 // 1: off
  std::int64_t seed = 1;
  std::string tokenizer =
      "auto";                 // auto (by the data and the vocabulary's size), bytes, gpt2, ids (in decimal)
  std::string tokenizer_dir;  // gpt2: folder with vocab.bpe and encoder.json; empty: see find_tokenizer
  std::string json;           // .json for the continuations; empty: none
  bool no_cache = false;      // recompute the whole sequence for every token (to check the cache)
};

// Streams the prompt and its continuation to stdout; of several, each under a line "=== sample I of N, seed
// S". Returns the exit code.
int run_sample(const SampleOptions& options, Device& device);

}  // namespace goat
