// The learning-rate schedule: a linear warm-up, then train.schedule.
#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace goat {

// Learning rate of `step`, 0 <= step < steps. Warm-up: lr (step + 1) / warmup, which is never zero. Then,
// with p = (step - first + 1) / (steps - first), which is 1 at the last step:
//   cosine    min_lr + (lr - min_lr) (1 + cos(pi p)) / 2, first = warmup
//   wsd       lr, and in the last decay_share of the steps min_lr + (lr - min_lr) (1 - p), first = their
//   first
//             (warm-up, stable, decay: Hu et al. 2024)
//   constant  lr
double learning_rate(const Config::Train& train, std::int64_t step, std::int64_t steps);

}  // namespace goat
