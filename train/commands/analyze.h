// `analyze`: writes what the prior of a trained model has learned, as .npy and .json files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace goat {

inline constexpr std::int64_t longest_analysis = 1 << 20;  // positions

struct AnalyzeOptions {
  std::string checkpoint;              // run folder, checkpoint folder or model.safetensors
  std::string precision;               // auto, fp32, bf16; empty: the run's model.precision
  std::string out;                     // output folder; empty: RUN/analysis
  std::optional<std::int64_t> length;  // T; nullopt: the training length
  std::int64_t layer = 0;              // layer and head of log_prior.npy
  std::int64_t head = 0;
  // Glob patterns or files of shards for signal_vs_sink. Empty: the run's validation data.
  std::vector<std::string> data;
};

// Writes the files and prints their names and a summary. Returns the exit code.
int run_analyze(const AnalyzeOptions& options, Device& device);

}  // namespace goat
