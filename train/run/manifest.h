// state.json of a checkpoint: the run's state, its config and data, and the checkpoint's other files with
// their checksums.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "data/shard_record.h"
#include "train/files/file_pieces.h"

namespace goat {

// The state of a run, besides weights and optimizer state, that it needs to continue as if it
// had never stopped.
struct RunState {
  std::int64_t step = 0;               // number of steps done
  std::int64_t sequences = 0;          // number of training sequences read = position in the data
  std::int64_t tokens = 0;             // number of tokens in these sequences
  std::int64_t updates = 0;            // number of updates applied
  std::int64_t consecutive_skips = 0;  // see StepState
  std::int64_t skipped_updates = 0;
  double seconds = 0;                  // training time
  std::vector<double> spike_window{};  // see SpikeFilter
  // Limits of the next step (StepState), from the results before the latest. NaN: to be computed from the
  // window.
  double loss_limit = nan, grad_norm_limit = nan;
  double loss = nan;                    // loss of the latest step; NaN before the first
  double validation_loss = nan;         // latest validation loss; NaN if there is none
  double best_loss = nan;               // see DivergenceWatch
  std::vector<double> latest_losses{};  // see DivergenceWatch; empty in old checkpoints
  std::string precision{};              // of the latest steps: "bf16", "fp32"; empty in old checkpoints
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();
};

// The data that a run was trained on.
struct DataRecord {
  std::string working_folder;  // start of the config's relative paths; empty in old checkpoints
  std::string tokenizer;       // "bytes", "gpt2"; empty if unknown
  std::vector<ShardRecord> training{}, validation{};  // empty for generated data and in old checkpoints
};

struct Manifest {
  RunState state;
  std::string config;  // the run's resolved config, TOML
  DataRecord data{};
  // A file of the checkpoint, and who wrote what of it: its pieces, in order, cover it. A single rank writes
  // one piece.
  struct File {
    std::string name;
    std::uint64_t bytes = 0;
    std::vector<FilePiece> pieces{};
  };
  std::vector<File> files{};
};

// state.json as text, and back. Format 1 has a checksum a file. Format 2, where a file has several pieces,
// has one a piece. parse_manifest checks everything that it returns. It throws DataError; the message begins
// with `origin`.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& text, const std::string& origin);

}  // namespace goat
