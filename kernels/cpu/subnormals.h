// Subnormal floats, those below 1.2e-38, in the arithmetic of the cpu device.
#pragma once

namespace goat {

// From now on the arithmetic of this thread, and of the threads that it starts later, takes subnormal numbers
// as zero, as operands and as results. x86-64 processors need over a hundred cycles for an instruction that
// meets one, and the small gradients of a model that has learned its task are full of them: it trained five
// times slower (dev/results/cpu_speed.md). Does nothing on other processors.
void flush_subnormals();

}  // namespace goat
