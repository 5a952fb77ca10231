// How long OpenMP's threads spin before they sleep.
#pragma once

namespace goat {

// Makes threads that wait for each other give up the processor soon. GCC's OpenMP lets them spin for
// milliseconds by default, which gains nothing on an idle machine and, where another program takes a core,
// holds up every parallel region by a time slice: a small model then trains ten times slower on two threads
// than on one. The runtime reads the setting (GOMP_SPINCOUNT) only as the program starts, so this puts it
// into the environment and starts the program anew, in the same process. Does nothing where the user has
// chosen (GOMP_SPINCOUNT or OMP_WAIT_POLICY) or where restarting fails. Call it first in main;
// dev/results/cpu_speed.md holds the measurements.
void limit_spinning(char** argv);

}  // namespace goat
