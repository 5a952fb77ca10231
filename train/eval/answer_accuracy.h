// AnswerAccuracy: how well a model answers the questions of a retrieval task.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "train/model/evaluation.h"

namespace goat {

// A target of an answer is right if it is the most likely token after the true tokens before it; of tokens
// that are equally likely, the one with the lowest id counts. If a whole answer is right, greedy decoding
// writes just that answer.
struct AnswerAccuracy {
  std::int64_t answers = 0, right_answers = 0;
  std::int64_t tokens = 0, right_tokens = 0;
  TokenLosses losses;  // of all targets

  double strict() const { return static_cast<double>(right_answers) / static_cast<double>(answers); }
  double per_token() const { return static_cast<double>(right_tokens) / static_cast<double>(tokens); }
  double log_probability() const { return -losses.answer_nll(); }  // mean of a token of the answers, in nats
};

// The id of the greatest of `logits`, the lowest if there are several. NaN is never greater.
std::int32_t most_likely(std::span<const float> logits);

// The answers to the cut's sequences of `source`, which must have one each. See measure_losses.
AnswerAccuracy measure_answers(Model& model, Device& device, TokenSource& source, Cut cut, std::int64_t vocab,
                               const std::function<void(std::int64_t)>& progress = {});

// The same with a new model, as evaluate() does.
AnswerAccuracy evaluate_answers(const Config& config, const ParameterSet& parameters, Device& device,
                                TokenSource& source, Cut cut,
                                const std::function<void(std::int64_t)>& progress = {});

}  // namespace goat
