#include "kernels/cpu/few_rows.h"

#include <algorithm>

#include "kernels/cpu/dot_rows.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
constexpr std::int64_t most_rows = 8;
constexpr int weights_at_once = 4;            // hides the latency of a multiply-add
constexpr std::int64_t block_weights = 16;    // rows of the weight in a work item; a cache line of out
constexpr std::int64_t one_thread = 1 << 14;  // elements of the weight that one thread reads sooner than two

// out[r, o] = <x_r, weight_o> + bias_o for the rows r and `count` rows of the weight from `first` on.
struct FewRows {
  float* out;
  const float *x, *weight, *bias;  // bias may be absent
  std::int64_t rows, in, columns;  // N, I, O

  template <int weights>
  SIMD_INLINE void store(std::int64_t o) const {
    for (std::int64_t r = 0; r < rows; ++r) {
      float sums[weights];
      dot_rows<weights>(sums, x + r * in, weight + o * in, in, in);
      for (int w = 0; w < weights; ++w) out[r * columns + o + w] = bias ? sums[w] + bias[o + w] : sums[w];
    }
  }
};

SIMD_CLONES void multiply_block(const FewRows& product, std::int64_t first, std::int64_t last) {
  std::int64_t o = first;
  for (; o + weights_at_once <= last; o += weights_at_once) product.store<weights_at_once>(o);
  for (; o < last; ++o) product.store<1>(o);
}
}  // namespace

bool has_few_rows(const LinearForward& op) {
  return op.x.dtype == DType::f32 && op.factors != Factors::bf16 && op.x.shape[0] >= 1 &&
         op.x.shape[0] <= most_rows;
}

// A thread owns a range of rows of the weight. Reads 4 O I bytes; x stays in cache.
void few_rows(const LinearForward& op) {
  const FewRows product{op.out.as<float>(), op.x.as<float>(), op.weight.as<float>(), op.bias.as<float>(),
                        op.x.shape[0],      op.x.shape[1],    op.weight.shape[0]};
  const std::int64_t columns = product.columns;
#pragma omp parallel for schedule(static) if (columns * product.in > one_thread)
  for (std::int64_t first = 0; first < columns; first += block_weights)
    multiply_block(product, first, std::min(columns, first + block_weights));
}

}  // namespace goat
