// `sample`: text from a trained model.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/device.h"

namespace goat {

struct SampleOptions {
  std::string checkpoint;  // run folder, checkpoint folder or model.safetensors
  std::string prompt;
  std::int64_t tokens = 200;  // to generate
  double temperature = 1.0;   // 0: the most likely token always
  std::int64_t top_k = 0;     // 0: off
  double top_p = 1.0;         // 1: off
  std::int64_t seed = 1;
  std::string tokenizer =
      "auto";  // auto (by the data and the vocabulary's size), bytes, gpt2, ids (token ids in decimal)
  std::string tokenizer_dir;  // gpt2: folder with vocab.bpe and encoder.json
  bool no_cache = false;      // recompute the whole sequence for every token (to check the cache)
};

// Streams the prompt and its continuation to stdout. Returns the exit code.
int run_sample(const SampleOptions& options, Device& device);

}  // namespace goat
