// A training step and its result.
#pragma once

#include "train/training/trainer.h"

namespace goat::test {

inline StepResult one_step(Trainer& trainer) {
  trainer.step();
  return trainer.finish_step().value();
}

}  // namespace goat::test
