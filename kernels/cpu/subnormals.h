// Subnormal floats, those below 1.2e-38, in the arithmetic of the cpu device.
#pragma once

namespace goat {

// From now on the arithmetic of this thread, and of the threads that it starts later, takes subnormal numbers
// as zero, as operands and as results. x86-64 processors are slow with them, and the small gradients of a
// model that has learned its task are full of them: such a model trained five times slower
// (dev/results/cpu_speed.md). Does nothing on other processors.
void flush_subnormals();

}  // namespace goat
