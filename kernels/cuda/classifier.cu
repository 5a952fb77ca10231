// Softmax cross entropy. The gradient replaces the logits. With m = max_v z_v, e_v = exp(z_v - m), t the
// target and E = sum over v != t of e_v:
//   loss = log(e_t + E) - (z_t - m),
//   dloss/dz_v = e_v / (e_t + E) for v != t,   dloss/dz_t = -E / (e_t + E).
// E excludes the target. So neither the loss nor the gradient suffers from cancellation where the target has
// almost all of the probability.
#include <cfloat>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/reduce.cuh"

namespace goat::GOAT_TARGET {

namespace {

// Threads of a block. A short row has at most 4 vectors for each thread of a small block.
constexpr int small_block = 128, large_block = 1024;

// Writes `value` at the target and in the padding. `values` are the elements first .. first + width - 1. Most
// vectors contain neither target nor padding.
template <int width>
__device__ __forceinline__ void exclude(float (&values)[width], float value, int first, int vocab,
                                        int target) {
  if (first + width <= vocab && (target < first || target >= first + width)) return;
#pragma unroll
  for (int i = 0; i < width; ++i)
    if (first + i >= vocab || first + i == target) values[i] = value;
}

struct Softmax {
  float largest;  // m
  float others;   // E
};

// Reads the row once: each thread keeps a running maximum and a sum of exponentials relative to it. A NaN
// logit makes the sum NaN.
template <int threads, int width, class T>
__device__ __forceinline__ Softmax softmax_of(const T* row, int vocab, int target, float target_logit) {
  float largest = -FLT_MAX, sum = 0;  // not -infinity: (-infinity) - (-infinity) would be NaN
  for (int first = static_cast<int>(threadIdx.x) * width; first < vocab; first += threads * width) {
    float z[width];
    const auto logits = Pack<T, width>::load(row + first);
#pragma unroll
    for (int i = 0; i < width; ++i) z[i] = logits[i];
    exclude(z, -INFINITY, first, vocab, target);
    float above = largest;
#pragma unroll
    for (int i = 0; i < width; ++i) above = fmaxf(above, z[i]);
    sum *= expf(largest - above);
    largest = above;
#pragma unroll
    for (int i = 0; i < width; ++i) sum += expf(z[i] - largest);
  }
  const float row_largest = fmaxf(block_max<threads>(largest), target_logit);
  return {row_largest, block_sum<threads>(sum * expf(largest - row_largest))};
}

// row <- factor e_v, but target_gradient at the target and 0 in the padding.
template <int threads, int width, class T>
__device__ __forceinline__ void write_gradient(T* row, int vocab, int padded_vocab, int target, float largest,
                                               float factor, float target_gradient) {
  for (int first = static_cast<int>(threadIdx.x) * width; first < padded_vocab; first += threads * width) {
    float gradient[width];
    auto pack = Pack<T, width>::load(row + first);
#pragma unroll
    for (int i = 0; i < width; ++i) gradient[i] = factor * expf(pack[i] - largest);
    exclude(gradient, 0.0f, first, vocab, target);
#pragma unroll
    for (int i = 0; i < width; ++i) pack.set(i, gradient[i]);
    pack.store(row + first);
    if (target >= first && target < first + width) row[target] = from_float<T>(target_gradient);
  }
}

// A target outside the vocabulary is a mistake of the caller. The kernel then reads no target logit, and the
// loss is NaN, so that the update is skipped.
template <int threads, int width, class T>
__device__ __forceinline__ void loss_and_gradient_of_row(T* row, float* loss, int target, float weight,
                                                         int vocab, int padded_vocab, bool backward) {
  const float target_logit = target < vocab ? to_float(row[target]) : NAN;
  const Softmax softmax = softmax_of<threads, width>(static_cast<const T*>(row), vocab, target, target_logit);
  const float distance = target_logit - softmax.largest;
  if (threadIdx.x == 0) *loss = log1pf(expm1f(distance) + softmax.others) - distance;
  if (!backward) return;
  const float sum = expf(distance) + softmax.others;
  write_gradient<threads, width>(row, vocab, padded_vocab, target, softmax.largest, weight / sum,
                                 -weight * (softmax.others / sum));
}

template <int threads, int width, class T>
__device__ __forceinline__ void mask_row(T* row, float* loss, int padded_vocab, bool backward) {
  if (threadIdx.x == 0) *loss = 0;
  if (!backward) return;
  Pack<T, width> zeros;
#pragma unroll
  for (int i = 0; i < width; ++i) zeros.set(i, 0);
  for (int first = static_cast<int>(threadIdx.x) * width; first < padded_vocab; first += threads * width)
    zeros.store(row + first);
}

template <class T>
struct CrossEntropyArguments {
  T* logits;      // [N, V_p]; the gradient replaces them
  float* losses;  // [N]
  const std::int32_t* targets;
  const float* weights;  // [N] or nullptr
  float weight;
  int vocab, padded_vocab;
  bool backward;
};

template <int threads, int width, class T>
__global__ void __launch_bounds__(threads) cross_entropy_kernel(const CrossEntropyArguments<T> op) {
  const std::int64_t n = blockIdx.x;
  T* row = op.logits + n * op.padded_vocab;
  const int target = op.targets[n];
  if (target < 0)
    mask_row<threads, width>(row, op.losses + n, op.padded_vocab, op.backward);
  else
    loss_and_gradient_of_row<threads, width>(row, op.losses + n, target,
                                             op.weights ? op.weight * op.weights[n] : op.weight, op.vocab,
                                             op.padded_vocab, op.backward);
}

template <int width, class T>
void enqueue_cross_entropy(std::int64_t rows, Stream stream, const CrossEntropyArguments<T>& arguments) {
  if (arguments.padded_vocab <= 4 * width * small_block)
    enqueue(cross_entropy_kernel<small_block, width, T>, rows, small_block, 0, stream, arguments);
  else
    enqueue(cross_entropy_kernel<large_block, width, T>, rows, large_block, 0, stream, arguments);
}

}  // namespace

// One block takes a row; neighbouring threads take neighbouring 16-byte vectors. A row has 100 kB in bf16 at
// V_p = 50,304. The block reads it from memory once. For the gradient it reads the row from the L2 cache,
// where the rows of 2 blocks a multiprocessor fit. Memory traffic: 2 N V_p elements, or N V without backward.
void CudaDevice::launch(const CrossEntropy& op) {
  const std::int64_t rows = op.logits.shape[0], padded_vocab = op.logits.shape[1];
  if (rows == 0) return;
  with_element_type(op.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const CrossEntropyArguments<T> arguments{.logits = data_of<T>(op.logits),
                                             .losses = op.losses.as<float>(),
                                             .targets = op.targets.as<std::int32_t>(),
                                             .weights = op.weights ? op.weights.as<float>() : nullptr,
                                             .weight = op.weight,
                                             .vocab = static_cast<int>(op.vocab),
                                             .padded_vocab = static_cast<int>(padded_vocab),
                                             .backward = op.backward};
    if (vectorizable(arguments.logits, padded_vocab))
      enqueue_cross_entropy<Vector<T>::size>(rows, stream_, arguments);
    else
      enqueue_cross_entropy<1>(rows, stream_, arguments);
  });
}

}  // namespace goat::GOAT_TARGET
