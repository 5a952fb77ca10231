#include "train/training/schedule.h"

#include <cmath>
#include <numbers>

namespace goat {

double learning_rate(const Config::Train& train, std::int64_t step, std::int64_t steps) {
  if (step < train.warmup)
    return train.lr * static_cast<double>(step + 1) / static_cast<double>(train.warmup);
  const double progress =
      static_cast<double>(step - train.warmup + 1) / static_cast<double>(steps - train.warmup);
  return train.min_lr + (train.lr - train.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace goat
