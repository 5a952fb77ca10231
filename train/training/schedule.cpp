#include "train/training/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace goat {

namespace {
// The first step of wsd's decay. The warm-up is never cut short.
std::int64_t first_of_decay(const Config::Train& train, std::int64_t steps) {
  const long long rounded = std::llround(train.decay_share * static_cast<double>(steps)),
                  decay = train.decay_share > 0 ? std::max(rounded, 1LL) : 0;
  return std::max(train.warmup, steps - static_cast<std::int64_t>(decay));
}
}  // namespace

double learning_rate(const Config::Train& train, std::int64_t step, std::int64_t steps) {
  if (step < train.warmup)
    return train.lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup);
  const bool wsd = train.schedule == "wsd";
  const std::int64_t first = wsd ? first_of_decay(train, steps) : train.warmup;
  if (train.schedule == "constant" || step < first) return train.lr;
  const double progress = static_cast<double>(step - first + 1) / static_cast<double>(steps - first);
  const double left = wsd ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return train.min_lr + (train.lr - train.min_lr) * left;
}

}  // namespace goat
