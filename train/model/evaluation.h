// Evaluation: the loss of a model for each token, on data that are cut into sequences of any length.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "kernels/device.h"
#include "train/config/config.h"
#include "train/memory/parameters.h"
#include "train/model/model.h"

namespace goat {

// How data are cut: consecutive sequences 0 .. sequences - 1 of `length` tokens each.
struct Cut {
  std::int64_t length = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens() const { return length * sequences; }
  bool operator==(const Cut&) const = default;
};

// Uses the same tokens at every length: the largest number of tokens, at most `available`, that every length
// divides. Throws DataError if there is no such number.
std::vector<Cut> recut(const std::vector<std::int64_t>& lengths, std::int64_t available);

// The paper's choice: 100 sequences of up to 8,192 tokens; for longer sequences, as many as make 819,200
// tokens. If there are too few data, it takes fewer sequences. Throws DataError if there is not even one.
std::vector<Cut> paper_cuts(const std::vector<std::int64_t>& lengths, std::int64_t available);

// About `tokens` tokens at every length, and at least one sequence. For generated tasks, whose tokens differ
// from length to length in any case.
std::vector<Cut> generated_cuts(const std::vector<std::int64_t>& lengths, std::int64_t tokens);

// Mean loss at positions first .. end - 1.
struct CurveBin {
  std::int64_t first = 0;
  std::int64_t end = 0;
  double nll = 0;
};

// Losses in nats, summed in double.
struct TokenLosses {
  std::vector<double> sum;            // [T], sum of the losses at each position over the sequences
  std::vector<std::int64_t> counted;  // [T], number of targets in each sum
  // [sequences, T], NaN for a target that is not counted. Empty unless keep_per_token.
  std::vector<float> per_token;
  double answer_sum = 0;  // over the answers (TokenSource::answer)
  std::int64_t answer_counted = 0;

  std::int64_t tokens() const;  // number of counted targets
  double nll() const;           // mean loss per counted target
  // The same over the answers. 0 if there are none.
  double answer_nll() const { return answer_counted ? answer_sum / static_cast<double>(answer_counted) : 0; }
  // Mean loss by position: one bin for each position below 4, then two bins an octave ([4, 6), [6, 8),
  // [8, 12), ...). The last bin ends at T.
  std::vector<CurveBin> curve() const;
};

// Limits of one forward pass. A pass always takes at least one sequence, whose memory is linear in T.
struct PassLimits {
  std::int64_t tokens = 32'768;
  std::size_t activation_bytes = std::size_t{1} << 30;
};

// Number of sequences in a forward pass within the limits. All passes have the same size.
std::int64_t sequences_per_pass(const Config& config, const DeviceInfo& device,
                                const ParameterSet& parameters, Cut cut, const PassLimits& limits);

// A model for forward passes alone, with memory of its own. While it lives, the device's operations take
// their temporary memory from there.
class ForwardModel {
 public:
  // Throws std::runtime_error that ends with `advice` if the device lacks the memory.
  ForwardModel(const Config& config, BatchShape shape, const ParameterSet& parameters, Device& device,
               const std::string& advice);
  ForwardModel(const ForwardModel&) = delete;
  Model& model() { return model_; }

 private:
  MemoryPlan memory_;
  Model model_;
  Tensor workspace_;
  std::optional<WorkspaceScope> scope_;
};

// Losses of the cut's sequences of `source`. `model` is bound and has the shape [any number of sequences,
// cut.length]. Except for rounding, the losses do not depend on the number of sequences in a pass. The last
// pass is filled up with targets that are not counted. `progress` (if given) is called after every pass with
// the number of finished sequences. Throws std::invalid_argument if the source's sequence length is not
// cut.length, and what the source throws.
TokenLosses measure_losses(Model& model, Device& device, TokenSource& source, Cut cut, bool keep_per_token,
                           const std::function<void(std::int64_t)>& progress = {});

// Losses of one sequence in nats, summed in double in the order of its positions.
struct SequenceLosses {
  double sum = 0;            // over its counted targets
  std::int64_t counted = 0;  // number of them
  double answer_sum = 0;     // over those of its answer
  std::int64_t answer_counted = 0;
  bool operator==(const SequenceLosses&) const = default;
};

// A rank's part of an evaluation.
struct PassShare {
  int rank = 0;
  int size = 1;
};

// Losses of the sequences in the rank's passes, in order. The P passes of B sequences each (the model's
// number) are those of measure_losses, and a rank takes the passes floor(P rank / size) .. floor(P (rank + 1)
// / size)
// - 1. So the sequences of all ranks one after the other, and their losses, are the same for any number of
// ranks. A rank has none if there are fewer passes than ranks. The model, and what is thrown, as for
// measure_losses; std::invalid_argument also if there is no such rank.
std::vector<SequenceLosses> measure_sequences(Model& model, Device& device, TokenSource& source, Cut cut,
                                              PassShare share);

// The same as measure_losses with a new model whose passes keep to `limits`. config.data.seq_len remains the
// training length L_train.
TokenLosses evaluate(const Config& config, const ParameterSet& parameters, Device& device,
                     TokenSource& source, Cut cut, bool keep_per_token, const PassLimits& limits = {},
                     const std::function<void(std::int64_t)>& progress = {});

}  // namespace goat
