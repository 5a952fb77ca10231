// Position embeddings: adding rows of a table to the stream, and their gradient.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
SIMD_CLONES void add_row(float* to, const float* row, std::int64_t width) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) to[c] += row[c];
}
}  // namespace

// A thread owns a range of tokens. Moves 3 N C floats.
void CpuDevice::launch(const AddPositions& op) {
  const std::int64_t length = op.stream.shape[1], width = op.stream.shape[2],
                     tokens = op.stream.shape[0] * length;
  float* stream = op.stream.as<float>();
  const float* table = op.table.as<float>() + op.first_position * width;
#pragma omp parallel for schedule(static) if (tokens > 1)
  for (std::int64_t n = 0; n < tokens; ++n) add_row(stream + n * width, table + n % length * width, width);
}

// A thread owns a range of positions, so that each sum has one owner and a fixed order. Moves N C + 2 T C
// floats.
void CpuDevice::launch(const AddPositionsBackward& op) {
  const std::int64_t batch = op.dstream.shape[0], length = op.dstream.shape[1], width = op.dstream.shape[2];
  float* dtable = op.dtable.as<float>();
  const float* dstream = op.dstream.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t t = 0; t < length; ++t)
    for (std::int64_t b = 0; b < batch; ++b)
      add_row(dtable + t * width, dstream + (b * length + t) * width, width);
}

}  // namespace goat
