// TokenLoss: the loss of a step as a weighted sum over its targets (train.loss).
#pragma once

#include <cstdint>
#include <span>

#include "train/config/config.h"
#include "train/model/evaluation.h"

namespace goat {

// loss = mean_share * mean over all counted targets + span_share * mean over those of the answers.
struct TokenLoss {
  explicit TokenLoss(const Config::Train& train);
  TokenLoss() = default;  // the mean

  double mean_share = 1;
  double span_share = 0;

  bool needs_answers() const { return span_share > 0; }
  // The weights of a step's targets, of which `counted` count, `answers` of them in the answers.
  struct Weights {
    float answer, other;
  };
  Weights weights(std::int64_t counted, std::int64_t answers) const;
  double of(const TokenLosses& losses) const;  // nats
  // The same over the sequences, added in their order.
  double of(std::span<const SequenceLosses> sequences) const;

 private:
  double weighted(double mean, double answer_mean) const;
};

}  // namespace goat
