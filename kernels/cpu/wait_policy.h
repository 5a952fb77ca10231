// How long OpenMP's threads spin before they sleep.
#pragma once

namespace goat {

// Makes OpenMP threads that wait give up the processor soon. By default GCC's OpenMP lets them spin for
// milliseconds. This gains nothing on an idle machine. If another program takes a core, it delays every
// parallel region by a time slice: a small model then trains ten times slower on two threads than on one.
// The runtime reads the setting (GOMP_SPINCOUNT) only when the program starts. Therefore this function sets
// the environment variable and starts the program again in the same process. It does nothing if the user has
// set GOMP_SPINCOUNT or OMP_WAIT_POLICY, or if the restart fails. Call it first in main.
// dev/results/cpu_speed.md has the measurements.
void limit_spinning(char** argv);

}  // namespace goat
