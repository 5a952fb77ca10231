// `sample`: generates text with a trained model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/device.h"

namespace goat {

struct SampleOptions {
  std::string checkpoint;             // run folder, checkpoint folder or model.safetensors
  std::string precision;              // auto, fp32, bf16; empty: the run's model.precision
  std::optional<std::string> prompt;  // "-": stdin
  std::string prompt_file;            // instead of `prompt`; "-": stdin
  std::int64_t tokens = 200;          // number of tokens to generate
  std::int64_t samples = 1;           // number of continuations; continuation i = 0, 1, .. uses seed + i
  double temperature = 1.0;           // 0: always the most likely token
  std::int64_t top_k = 0;             // 0: off
  double top_p = 1.0;                 // 1: off
  std::int64_t seed = 1;
  // auto (chosen by the data and the size of the vocabulary), bytes, gpt2, tokenizer.json, dna, ids (decimal
  // numbers)
  std::string tokenizer = "auto";
  std::string tokenizer_dir;  // folder with the tokenizer's files; empty: see find_tokenizer
  std::string json;           // .json file for the continuations; empty: none
  bool no_cache = false;      // recompute the whole sequence for every token (to check the cache)
};

// Writes the prompt and its continuation to stdout as they are generated. If there are several continuations,
// each follows a line "=== sample I of N, seed S". A terminal gets terminal_text of them, anything else the
// exact bytes. Returns the exit code.
int run_sample(const SampleOptions& options, Device& device);

}  // namespace goat
