// The learning-rate schedule: linear warm-up, then a cosine that reaches min_lr at the last step.
#pragma once

#include <cstdint>

#include "train/config/config.h"

namespace goat {

// Learning rate of `step`, 0 <= step < steps. Warm-up: lr (step+1)/warmup, which is never zero. Then: min_lr
// + (lr - min_lr)(1 + cos(pi p))/2 with p = (step - warmup + 1) / (steps - warmup), so that the last step
// uses exactly min_lr.
double learning_rate(const Config::Train& train, std::int64_t step, std::int64_t steps);

}  // namespace goat
