// What the machine can do at most, measured: the two lines of the roofline.
#pragma once

#include "train/profile/clock.h"

namespace goat {

struct MachineLimits {
  double flops_per_second = 0;  // oneDNN sgemm, square matrices of 2,048, the best of some runs
  double bytes_per_second =
      0;  // a += s b on arrays far larger than the caches (two reads and a write), the best of some runs

  // Seconds that work of so many FLOPs and bytes takes at least.
  double seconds(double flops, double bytes) const;
};

// Uses OpenMP's threads; takes about a second.
MachineLimits measure_machine(Clock clock);
MachineLimits best_of(const MachineLimits& a, const MachineLimits& b);

}  // namespace goat
