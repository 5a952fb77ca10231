// Loss, gradient norm and AdamW. AddLoss, SquaredSums and StepVerdict add as the cpu device does, to the bit.
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

constexpr int quad = 4;  // elements that a thread takes at a time: 16 bytes of f32

// The first `count` of four consecutive elements, and zeros. With `vectors` and count == 4 this is one access
// of 16 bytes.
__device__ __forceinline__ void load(float (&values)[quad], const float* source, int count, bool vectors) {
  if (vectors && count == quad) {
    const uint4 bits = *reinterpret_cast<const uint4*>(source);
    memcpy(&values, &bits, sizeof bits);
  } else {
#pragma unroll
    for (int e = 0; e < quad; ++e) values[e] = e < count ? source[e] : 0.0f;
  }
}

// ------------------------------------------------------------------------------------------ sums of a step
constexpr int lane_threads = sum_lanes;         // threads of a block in which each adds one lane
constexpr int quad_threads = sum_lanes / quad;  // and in which thread t adds the lanes 4t .. 4t+3

// The sum of a block's values in the order of sum_lanes: neighbours, then neighbours among their sums. All
// threads receive it. A kernel calls this once.
template <int threads>
__device__ __forceinline__ double sum_of_neighbours(double value) {
  constexpr int warps = threads / 32;
  static_assert(threads % 32 == 0 && warps <= 32 && (warps & (warps - 1)) == 0);
  GOAT_SHARED(partial, double[warps]);
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) value += __shfl_xor_sync(all_lanes, value, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  double total = partial[threadIdx.x % warps];
#pragma unroll
  for (int offset = 1; offset < warps; offset *= 2) total += __shfl_xor_sync(all_lanes, total, offset);
  return total;
}

__global__ void __launch_bounds__(lane_threads)
    add_loss_kernel(double* sum, const float* losses, const float* weights, float weight,
                    std::int64_t count) {
  double lane = 0;
  for (std::int64_t n = threadIdx.x; n < count; n += sum_lanes)
    lane += static_cast<double>(losses[n]) * (weights ? weights[n] : 1.0f);
  const double total = sum_of_neighbours<lane_threads>(lane);
  if (threadIdx.x == 0) *sum = fma(static_cast<double>(weight), total, *sum);
}

// In double the squares are exact, without overflow or underflow.
__global__ void __launch_bounds__(quad_threads)
    squared_sums_kernel(double* sums, const float* x, std::int64_t elements, bool vectors) {
  const std::int64_t first = std::int64_t{blockIdx.x} * SquaredSums::chunk, left = elements - first;
  const int count = static_cast<int>(left < SquaredSums::chunk ? left : SquaredSums::chunk);
  double lanes[quad] = {};
  for (int i = static_cast<int>(threadIdx.x) * quad; i < count; i += sum_lanes) {
    float values[quad];
    load(values, x + first + i, min(count - i, quad), vectors);
#pragma unroll
    for (int e = 0; e < quad; ++e) lanes[e] += static_cast<double>(values[e]) * values[e];
  }
  const double total = sum_of_neighbours<quad_threads>((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

struct Matrix {
  const double* data;
  std::int64_t rows, columns, stride;
};

// The sums of squares that one launch adds. Further launches go on with the lanes of the one before.
struct SquaresList {
  static constexpr int capacity = 64;
  Matrix sums[capacity];
  std::int64_t first[capacity];
  int count, nodes;
  bool begins, ends;
};

// The step's loss. The sums are few: one of each leaf.
__device__ __forceinline__ double sum_of(const Matrix& losses) {
  double sum = 0;
  for (std::int64_t r = 0; r < losses.rows; ++r)
    for (std::int64_t c = 0; c < losses.columns; ++c) sum += losses.data[r * losses.stride + c];
  return sum;
}

// The rank that has this piece of each tensor (StepVerdict in operations.h).
__device__ __forceinline__ std::int64_t rank_of(std::int64_t piece, std::int64_t ranks, int nodes) {
  return nodes == 1 ? piece : piece % nodes * (ranks / nodes) + piece / nodes;
}

// Adds the squares whose chunks belong to the thread's lane.
__device__ __forceinline__ double lane_of(const SquaresList& list, double lane) {
  for (int t = 0; t < list.count; ++t) {
    const Matrix& sums = list.sums[t];
    const std::int64_t count = sums.rows * sums.columns;
    std::int64_t i = (threadIdx.x + sum_lanes - list.first[t] % sum_lanes) % sum_lanes;
    for (; i < count; i += sum_lanes) {
      const std::int64_t rank = rank_of(i / sums.columns, sums.rows, list.nodes);
      lane += sums.data[rank * sums.stride + i % sums.columns];
    }
  }
  return lane;
}

__device__ __forceinline__ bool is_finite(float value) { return fabsf(value) <= FLT_MAX; }

__device__ __forceinline__ void judge(StepState& state, double loss, double squares, float clip) {
  state.loss = static_cast<float>(loss);
  state.grad_norm = static_cast<float>(sqrt(squares));
  state.clip_scale = clip > 0 && state.grad_norm > clip ? clip / state.grad_norm : 1.0f;
  const bool finite = is_finite(state.loss) && is_finite(state.grad_norm);
  const bool spike = (state.loss_limit > 0 && state.loss > state.loss_limit) ||
                     (state.grad_norm_limit > 0 && state.grad_norm > state.grad_norm_limit);
  state.skip_update = !finite ? StepState::not_finite : spike ? StepState::spike : 0;
  state.consecutive_skips = state.skip_update ? state.consecutive_skips + 1 : 0;
  state.updates += state.skip_update ? 0 : 1;
}

__device__ __forceinline__ std::int32_t flag_of(const Matrix& flags, int column) {
  double largest = 0;
  for (std::int64_t r = 0; r < flags.rows; ++r)
    largest = fmax(largest, flags.data[r * flags.stride + column]);
  return static_cast<std::int32_t>(largest);
}

__global__ void __launch_bounds__(lane_threads)
    step_verdict_kernel(StepState* state, const Matrix losses, const Matrix flags, float clip, double* lanes,
                        const __grid_constant__ SquaresList list) {
  const double lane = lane_of(list, list.begins ? 0.0 : lanes[threadIdx.x]);
  if (!list.ends) {
    lanes[threadIdx.x] = lane;
    return;
  }
  const double squares = sum_of_neighbours<lane_threads>(lane);
  if (threadIdx.x < StepState::most_flags) state->flags[threadIdx.x] = flag_of(flags, threadIdx.x);
  if (threadIdx.x == 0) judge(*state, sum_of(losses), squares, clip);
}

// ---------------------------------------------------------------------------------------------------- adamw
constexpr int adamw_threads = 256;

template <class P>
struct AdamWOperands {
  P* param;
  float* weights;  // the master weights; `param` if there are no separate ones
  float* m;
  float* v;
  const float* grad;
  std::int64_t count;
  float beta1, beta2, eps, weight_decay, lr_scale;
  bool stochastic;
  std::uint64_t seed;
  std::int64_t first_block;  // the Philox block of the first quad
  bool vectors;              // all operands are aligned to quads
};

// The first `count` of four elements. With `vectors` and count == 4 this is one access of 16 bytes, or of 8
// where they are bf16.
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
  const AdamWStep step{state->clip_scale, state->learning_rate * a.lr_scale, correction[0], correction[1], t};
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
  enqueue(add_loss_kernel, 1, lane_threads, 0, stream_, op.sum, op.losses.as<float>(),
          op.weights ? op.weights.as<float>() : nullptr, op.weight, op.losses.elements());
}

// A block takes a chunk, a thread 16 bytes at a time. Memory traffic: x once.
void CudaDevice::launch(const SquaredSums& op) {
  const std::int64_t chunks = op.sums.elements();
  if (chunks == 0) return;
  enqueue(squared_sums_kernel, chunks, quad_threads, 0, stream_, data_of<double>(op.sums),
          data_of<float>(op.x), op.x.elements(), aligned_to_quads(op.x));
}

namespace {
Matrix matrix_of(const Tensor& tensor) {
  return {data_of<double>(tensor), tensor.shape[0], tensor.shape[1], tensor.stride[0]};
}
}  // namespace

// The lanes that one launch leaves for the next.
std::size_t CudaDevice::workspace(const StepVerdict& op) const {
  return op.squares.size() > SquaresList::capacity ? sum_lanes * sizeof(double) : 0;
}

// One block: there is one sum of squares for 32768 elements of the model.
void CudaDevice::launch(const StepVerdict& op) {
  const Matrix flags = op.flags ? matrix_of(op.flags) : Matrix{};
  auto* lanes = static_cast<double*>(workspace_.take(op));
  std::size_t done = 0;
  do {
    SquaresList list{};
    list.nodes = op.nodes;
    list.begins = done == 0;
    for (; list.count < SquaresList::capacity && done < op.squares.size(); ++done, ++list.count) {
      list.sums[list.count] = matrix_of(op.squares[done].sums);
      list.first[list.count] = op.squares[done].first;
    }
    list.ends = done == op.squares.size();
    enqueue(step_verdict_kernel, 1, lane_threads, 0, stream_, op.state, matrix_of(op.losses), flags, op.clip,
            lanes, list);
  } while (done < op.squares.size());
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
                                    .lr_scale = op.lr_scale,
                                    .stochastic = op.rounding == Rounding::stochastic,
                                    .seed = op.seed,
                                    .first_block = op.first_element / quad,
                                    .vectors = vectors};
    enqueue(adamw_kernel<P>, blocks, adamw_threads, 0, stream_, op.state, operands);
  });
}

}  // namespace goat::GOAT_TARGET
