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

double TokenLoss::of(const TokenLosses& losses) const {
  if (!needs_answers()) return losses.nll();
  return mean_share * losses.nll() + span_share * losses.answer_nll();
}

}  // namespace goat
