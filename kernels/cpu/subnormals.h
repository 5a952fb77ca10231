// Subnormal floats, those below 1.2e-38, in the arithmetic of the cpu device.
#pragma once

namespace goat {

// From now on the arithmetic of this thread, of its OpenMP team and of the threads that they start takes
// subnormal numbers as zero, as operands and as results. x86-64 processors need over a hundred cycles for an
// instruction that meets one, and the small gradients of a model that has learned its task are full of them:
// its training became many times slower (dev/results/cpu_speed.md). Does nothing on other processors.
void flush_subnormals();

}  // namespace goat
