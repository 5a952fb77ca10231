// Loss, gradient norm and AdamW.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

namespace {

constexpr int sum_threads = 1024;  // threads of a block that finishes a sum alone

__global__ void __launch_bounds__(sum_threads)
    add_loss_kernel(StepState* state, const float* losses, const float* weights, float weight,
                    std::int64_t count) {
  double sum = 0;
  for (std::int64_t n = threadIdx.x; n < count; n += sum_threads)
    sum += static_cast<double>(losses[n]) * (weights ? weights[n] : 1.0f);
  sum = block_sum<sum_threads>(sum);
  if (threadIdx.x == 0) state->loss = static_cast<float>(state->loss + weight * sum);
}

// -------------------------------------------------------------------------------------------- gradient norm
constexpr int norm_threads = 256;
constexpr std::int64_t norm_chunk = 32768;  // elements that a block takes

// The tensors of one launch. Block b takes a chunk of the last tensor i with first_block[i] <= b.
struct GradientList {
  static constexpr int capacity = 64;
  const float* data[capacity];
  std::int64_t elements[capacity];
  unsigned first_block[capacity + 1];
  int tensors;
};

// In double the squares are exact, without overflow or underflow.
__device__ __forceinline__ double sum_of_squares(const float* values, std::int64_t count) {
  constexpr int width = Vector<float>::size;
  double sum = 0;
  std::int64_t done = 0;
  if (reinterpret_cast<std::uintptr_t>(values) % 16 == 0) {
    done = count / width * width;
    for (std::int64_t i = threadIdx.x * width; i < done; i += norm_threads * width) {
      const auto vector = Vector<float>::load(values + i);
#pragma unroll
      for (int e = 0; e < width; ++e) sum += static_cast<double>(vector[e]) * vector[e];
    }
  }
  for (std::int64_t i = done + threadIdx.x; i < count; i += norm_threads)
    sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

__global__ void __launch_bounds__(norm_threads)
    squares_kernel(double* partial, const __grid_constant__ GradientList list) {
  int i = 0;
  while (i + 1 < list.tensors && list.first_block[i + 1] <= blockIdx.x) ++i;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x - list.first_block[i]) * norm_chunk;
  const std::int64_t left = list.elements[i] - first, count = left < norm_chunk ? left : norm_chunk;
  const double total = block_sum<norm_threads>(sum_of_squares(list.data[i] + first, count));
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__device__ __forceinline__ bool is_finite(float value) { return fabsf(value) <= FLT_MAX; }

__device__ __forceinline__ void judge(StepState& state, double squares, float clip) {
  state.grad_norm = static_cast<float>(sqrt(squares));
  state.clip_scale = clip > 0 && state.grad_norm > clip ? clip / state.grad_norm : 1.0f;
  const bool finite = is_finite(state.loss) && is_finite(state.grad_norm);
  const bool spike = (state.loss_limit > 0 && state.loss > state.loss_limit) ||
                     (state.grad_norm_limit > 0 && state.grad_norm > state.grad_norm_limit);
  state.skip_update = !finite ? StepState::not_finite : spike ? StepState::spike : 0;
  state.consecutive_skips = state.skip_update ? state.consecutive_skips + 1 : 0;
  state.updates += state.skip_update ? 0 : 1;
}

__global__ void __launch_bounds__(sum_threads)
    finish_norm_kernel(StepState* state, const double* partial, std::int64_t partials, float clip) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < partials; i += sum_threads) sum += partial[i];
  sum = block_sum<sum_threads>(sum);
  if (threadIdx.x == 0) judge(*state, sum, clip);
}

// ---------------------------------------------------------------------------------------------------- adamw
constexpr int adamw_threads = 256;
constexpr int quad = 4;  // elements that a thread updates at a time: 16 bytes of f32

template <class P>
struct AdamWOperands {
  P* param;
  float* weights;  // the master weights; `param` if there are no separate ones
  float* m;
  float* v;
  const float* grad;
  std::int64_t count;
  float beta1, beta2, eps, weight_decay;
  bool stochastic;
  std::uint64_t seed;
  std::int64_t first_block;  // the Philox block of the first quad
  bool vectors;              // all operands are aligned to quads
};

// The first `count` of four consecutive elements. With `vectors` and count == 4 this is one access of 16
// bytes, or of 8 bytes where bf16 is stored.
__device__ __forceinline__ void load(float (&values)[quad], const float* source, int count, bool vectors) {
  if (vectors && count == quad) {
    const uint4 bits = *reinterpret_cast<const uint4*>(source);
    memcpy(&values, &bits, sizeof bits);
  } else {
#pragma unroll
    for (int e = 0; e < quad; ++e) values[e] = e < count ? source[e] : 0.0f;
  }
}
template <class T>
__device__ __forceinline__ void store(T* target, const T (&values)[quad], int count, bool vectors) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
  if (vectors && count == quad) {
    Bits bits;
    memcpy(&bits, &values, sizeof bits);
    *reinterpret_cast<Bits*>(target) = bits;
  } else {
#pragma unroll
    for (int e = 0; e < quad; ++e)
      if (e < count) target[e] = values[e];
  }
}

// Adds 16 random bits below the last bit that bf16 keeps, and then cuts the lower 16 bits off. So the value
// is rounded away from zero with probability (the cut bits) / 2^16. The largest bf16, larger values, infinity
// and NaN are rounded to nearest.
__device__ __forceinline__ bf16 rounded_stochastically(float value, std::uint32_t random) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7FFFFFFFu) >= 0x7F7F0000u) return from_float<bf16>(value);
  const std::uint32_t kept = (bits + (random >> 16)) & 0xFFFF0000u;
  float rounded;
  memcpy(&rounded, &kept, sizeof rounded);
  return from_float<bf16>(rounded);
}

// Element i of the numbering that first_element continues uses word i % 4 of the Philox block with key `seed`
// and counter (i / 4, t).
template <class P>
__device__ __forceinline__ void round_weights(P (&param)[quad], const float (&weights)[quad],
                                              std::int64_t block, std::int64_t t, std::uint64_t seed,
                                              bool stochastic) {
  if constexpr (std::is_same_v<P, bf16>) {
    if (stochastic) {
      std::uint32_t random[4] = {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                 static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(t >> 32)};
      philox4x32(random, seed);
#pragma unroll
      for (int e = 0; e < quad; ++e) param[e] = rounded_stochastically(weights[e], random[e]);
      return;
    }
  }
#pragma unroll
  for (int e = 0; e < quad; ++e) param[e] = from_float<P>(weights[e]);
}

struct AdamWStep {
  float clip_scale, learning_rate, m_correction, v_correction;  // corrections: 1 / (1 - beta^t)
  std::int64_t t;
};

template <class P>
__device__ __forceinline__ void update_quad(const AdamWOperands<P>& a, const AdamWStep& step,
                                            std::int64_t block) {
  const std::int64_t first = block * quad;
  const int count = a.count - first < quad ? static_cast<int>(a.count - first) : quad;
  float weights[quad], m[quad], v[quad], grad[quad];
  load(weights, a.weights + first, count, a.vectors);
  load(m, a.m + first, count, a.vectors);
  load(v, a.v + first, count, a.vectors);
  load(grad, a.grad + first, count, a.vectors);
#pragma unroll
  for (int e = 0; e < quad; ++e) {
    const float g = step.clip_scale * grad[e];
    m[e] = a.beta1 * m[e] + (1 - a.beta1) * g;
    v[e] = a.beta2 * v[e] + (1 - a.beta2) * g * g;
    weights[e] -= step.learning_rate * (m[e] * step.m_correction / (sqrtf(v[e] * step.v_correction) + a.eps) +
                                        a.weight_decay * weights[e]);
  }
  store(a.m + first, m, count, a.vectors);
  store(a.v + first, v, count, a.vectors);
  P param[quad];
  round_weights(param, weights, a.first_block + block, step.t, a.seed, a.stochastic);
  store(a.param + first, param, count, a.vectors);
  if (static_cast<const void*>(a.weights) != a.param) store(a.weights + first, weights, count, a.vectors);
}

template <class P>
__global__ void __launch_bounds__(adamw_threads)
    adamw_kernel(const StepState* state, const AdamWOperands<P> a) {
  GOAT_SHARED(correction, float[2]);
  const std::int64_t t = state->updates;
  if (threadIdx.x < 2) {
    const double beta = threadIdx.x == 0 ? a.beta1 : a.beta2;
    correction[threadIdx.x] = static_cast<float>(1 / (1 - pow(beta, static_cast<double>(t))));
  }
  __syncthreads();
  if (state->skip_update) return;
  const AdamWStep step{state->clip_scale, state->learning_rate, correction[0], correction[1], t};
  const std::int64_t blocks = (a.count + quad - 1) / quad,
                     stride = static_cast<std::int64_t>(gridDim.x) * adamw_threads;
  for (std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * adamw_threads + threadIdx.x;
       block < blocks; block += stride)
    update_quad(a, step, block);
}

bool aligned_to_quads(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % (quad * size_of(tensor.dtype)) == 0;
}

}  // namespace

// One block, because N is small. Memory traffic: 4 bytes a token (8 with weights).
void CudaDevice::launch(const AddLoss& op) {
  enqueue(add_loss_kernel, 1, sum_threads, 0, stream_, op.state, op.losses.as<float>(),
          op.weights ? op.weights.as<float>() : nullptr, op.weight, op.losses.elements());
}

namespace {
std::int64_t norm_chunks(const Tensor& grad) { return divide_up(grad.elements(), norm_chunk); }
}  // namespace

// The sums of the chunks of all gradients.
std::size_t CudaDevice::workspace(const GradientNorm& op) const {
  std::int64_t chunks = 0;
  for (const Tensor& grad : op.grads) chunks += norm_chunks(grad);
  return static_cast<std::size_t>(chunks) * sizeof(double);
}

// A block sums a chunk of one gradient; a thread takes 16 bytes at a time. One launch covers many
// tensors. Then one block adds the chunks in their order and sets the state of the step. Memory traffic:
// the gradients once.
void CudaDevice::launch(const GradientNorm& op) {
  auto* partial = static_cast<double*>(workspace_.take(op));
  std::int64_t done = 0;
  GradientList list{};
  const auto flush = [&] {
    const unsigned blocks = list.first_block[list.tensors];
    if (blocks > 0) enqueue(squares_kernel, blocks, norm_threads, 0, stream_, partial + done, list);
    done += blocks;
    list.tensors = 0;
  };
  for (const Tensor& grad : op.grads) {
    const int i = list.tensors++;
    list.data[i] = data_of<float>(grad);
    list.elements[i] = grad.elements();
    list.first_block[i + 1] = list.first_block[i] + static_cast<unsigned>(norm_chunks(grad));
    if (list.tensors == GradientList::capacity) flush();
  }
  flush();
  enqueue(finish_norm_kernel, 1, sum_threads, 0, stream_, op.state, partial, done, op.clip);
}

// Neighbouring threads take neighbouring quads, so that every access of a warp is 512 consecutive bytes
// (256 for bf16). Memory traffic: 28 bytes for each f32 parameter, 30 for a bf16 parameter with a master
// weight.
void CudaDevice::launch(const AdamW& op) {
  const std::int64_t count = op.param.elements();
  if (count == 0) return;
  const Tensor& weights = op.master ? op.master : op.param;
  const bool vectors = aligned_to_quads(op.param) && aligned_to_quads(weights) && aligned_to_quads(op.m) &&
                       aligned_to_quads(op.v) && aligned_to_quads(op.grad);
  const std::int64_t blocks =
      std::min<std::int64_t>(divide_up(count, quad * adamw_threads), 8 * multiprocessors_);
  with_element_type(op.param.dtype, [&]<class P>(P) {
    const AdamWOperands<P> operands{.param = data_of<P>(op.param),
                                    .weights = weights.as<float>(),
                                    .m = op.m.as<float>(),
                                    .v = op.v.as<float>(),
                                    .grad = op.grad.as<float>(),
                                    .count = count,
                                    .beta1 = op.beta1,
                                    .beta2 = op.beta2,
                                    .eps = op.eps,
                                    .weight_decay = op.weight_decay,
                                    .stochastic = op.rounding == Rounding::stochastic,
                                    .seed = op.seed,
                                    .first_block = op.first_element / quad,
                                    .vectors = vectors};
    enqueue(adamw_kernel<P>, blocks, adamw_threads, 0, stream_, op.state, operands);
  });
}

}  // namespace goat::GOAT_TARGET
