#include "train/training/token_loss.h"

namespace goat {

TokenLoss::TokenLoss(const Config::Train& train) {
  if (train.loss == "mean") return;
  mean_share = train.loss == "span" ? 0 : 1 / (1 + train.span_weight);
  span_share = 1 - mean_share;
}

TokenLoss::Weights TokenLoss::weights(std::int64_t counted, std::int64_t answers) const {
  const double other = mean_share / static_cast<double>(counted),
               answer = needs_answers() ? other + span_share / static_cast<double>(answers) : other;
  return {.answer = static_cast<float>(answer), .other = static_cast<float>(other)};
}

double TokenLoss::weighted(double mean, double answer_mean) const {
  return needs_answers() ? mean_share * mean + span_share * answer_mean : mean;
}

double TokenLoss::of(const TokenLosses& losses) const { return weighted(losses.nll(), losses.answer_nll()); }

double TokenLoss::of(std::span<const SequenceLosses> sequences) const {
  SequenceLosses all;
  for (const SequenceLosses& one : sequences) {
    all.sum += one.sum;
    all.counted += one.counted;
    all.answer_sum += one.answer_sum;
    all.answer_counted += one.answer_counted;
  }
  return weighted(all.sum / static_cast<double>(all.counted),
                  all.answer_counted ? all.answer_sum / static_cast<double>(all.answer_counted) : 0);
}

}  // namespace goat
