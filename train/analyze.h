// `analyze`: what the prior of a trained model has learned, as .npy and .json files.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/device.h"

namespace goat {

struct AnalyzeOptions {
  std::string checkpoint;   // run folder, checkpoint folder or model.safetensors
  std::string out;          // folder; empty: RUN/analysis
  std::int64_t length = 0;  // T; 0: the training length
  std::int64_t layer = 0;   // of log_prior.npy
  std::int64_t head = 0;
  std::string data;  // glob of shards for signal_vs_sink; empty: the run's validation data
};

// Writes the files and prints where they are and what stands out. Returns the exit code.
int run_analyze(const AnalyzeOptions& options, Device& device);

}  // namespace goat
