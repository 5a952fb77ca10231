#include "kernels/cpu/subnormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace goat {

#if defined(__x86_64__)
void flush_subnormals() {
  constexpr unsigned results_to_zero = 0x8000, operands_to_zero = 0x0040;  // bits FTZ and DAZ of MXCSR
  _mm_setcsr(_mm_getcsr() | results_to_zero | operands_to_zero);
}
#else
void flush_subnormals() {}
#endif

}  // namespace goat
