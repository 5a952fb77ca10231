#include <omp.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/index_range.h"

namespace goat {

// A thread owns a range of tokens. Moves 2 N C floats.
void CpuDevice::launch(const EmbeddingForward& op) {
  const std::int64_t width = op.table.shape[1], tokens = op.tokens.elements();
  require_in_range("embedding_forward", op.tokens, 0, op.table.shape[0]);
  float* out = op.out.as<float>();
  const std::int32_t* ids = op.tokens.as<std::int32_t>();
  const float* table = op.table.as<float>();
#pragma omp parallel for schedule(static) if (tokens > 1)
  for (std::int64_t n = 0; n < tokens; ++n) std::copy_n(table + ids[n] * width, width, out + n * width);
}

// A thread owns a range of columns, whole cache lines wide, and visits all tokens in order. Therefore each
// sum has one owner and a fixed order, and a token that occurs often does not give one thread more work than
// another. Moves 3 N C floats.
void CpuDevice::launch(const EmbeddingBackward& op) {
  const std::int64_t width = op.dtable.shape[1], tokens = op.tokens.elements();
  require_in_range("embedding_backward", op.tokens, 0, op.dtable.shape[0]);
  float* dtable = op.dtable.as<float>();
  const float* dout = op.dout.as<float>();
  const std::int32_t* ids = op.tokens.as<std::int32_t>();
  constexpr std::int64_t line = 64 / sizeof(float);
  const std::int64_t lines = (width + line - 1) / line;
#pragma omp parallel
  {
    const std::int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const std::int64_t first = std::min(width, lines * thread / threads * line),
                       last = std::min(width, lines * (thread + 1) / threads * line);
    for (std::int64_t n = 0; n < tokens; ++n) {
      float* row = dtable + ids[n] * width;
      const float* gradient = dout + n * width;
#pragma omp simd
      for (std::int64_t c = first; c < last; ++c) row[c] += gradient[c];
    }
  }
}

}  // namespace goat
