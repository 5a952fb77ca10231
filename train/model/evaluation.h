// Evaluation: the loss of a model, token by token, on data that is cut into sequences of any length.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/token_source.h"
#include "kernels/device.h"
#include "train/config/config.h"
#include "train/model/model.h"
#include "train/model/parameters.h"

namespace goat {

// How data are cut: sequences 0 .. sequences - 1 of `length` tokens, one after the other.
struct Cut {
  std::int64_t length = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens() const { return length * sequences; }
  bool operator==(const Cut&) const = default;
};

// The same tokens at every length: the largest number of the first `available` ones that every length
// divides. Throws DataError where that is none.
std::vector<Cut> recut(const std::vector<std::int64_t>& lengths, std::int64_t available);

// The paper's choice: 100 sequences up to 8,192 tokens, then as many as keep 819,200 tokens; fewer (at least
// one, else DataError) where the data end.
std::vector<Cut> paper_cuts(const std::vector<std::int64_t>& lengths, std::int64_t available);

// About `tokens` tokens at every length, at least one sequence: for generated tasks, which have other tokens
// at each length anyway.
std::vector<Cut> generated_cuts(const std::vector<std::int64_t>& lengths, std::int64_t tokens);

// Mean loss at positions first .. end - 1.
struct CurveBin {
  std::int64_t first = 0;
  std::int64_t end = 0;
  double nll = 0;
};

// Losses in nats, summed in double.
struct TokenLosses {
  std::vector<double> sum;            // [T] by position, over the sequences
  std::vector<std::int64_t> counted;  // [T] targets behind each sum
  std::vector<float>
      per_token;  // [sequences, T], NaN where the target is not counted; empty unless asked for

  std::int64_t tokens() const;  // counted targets
  double nll() const;           // mean loss of a token
  // The loss by position: every position below 4, then two bins an octave ([4, 6), [6, 8), [8, 12), ...); the
  // last one ends at T.
  std::vector<CurveBin> curve() const;
};

// What one forward pass may take. At least one sequence goes through it in any case; memory is then linear in
// T.
struct PassLimits {
  std::int64_t tokens = 32'768;
  std::size_t activation_bytes = std::size_t{1} << 30;
};

// Sequences of a forward pass within the limits, passes being of equal size.
std::int64_t sequences_per_pass(const Config& config, const ParameterSet& parameters, Cut cut,
                                const PassLimits& limits);

// Losses of the cut's sequences of `source` under a bound model of shape [any number of sequences,
// cut.length], whose sequence length is the source's too. Rounding apart, they do not depend on how many
// sequences a pass takes; a last pass that is not full is filled up with targets that do not count.
// `progress` (if given) is told after every pass how many sequences are done. Throws std::invalid_argument if
// the lengths differ, and what the source throws.
TokenLosses measure_losses(Model& model, Device& device, TokenSource& source, Cut cut, bool keep_per_token,
                           const std::function<void(std::int64_t)>& progress = {});

// The same with a model of its own, whose passes keep to `limits`. The config's data.seq_len stays the
// training length L_train.
TokenLosses evaluate(const Config& config, const ParameterSet& parameters, Device& device,
                     TokenSource& source, Cut cut, bool keep_per_token, const PassLimits& limits = {},
                     const std::function<void(std::int64_t)>& progress = {});

}  // namespace goat
