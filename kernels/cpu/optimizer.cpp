// Loss, gradient norm and AdamW. No result depends on the number of threads.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
constexpr std::int64_t block_size = 16384;  // elements per thread and work item

// The lanes of a sum (sum_lanes in operations.h).
using Lanes = std::array<double, sum_lanes>;

SIMD_CLONES void add_losses(double* __restrict lanes, const float* __restrict losses,
                            const float* __restrict weights, std::int64_t count) {
  for (std::int64_t first = 0; first < count; first += sum_lanes) {
    const std::int64_t terms = std::min(sum_lanes, count - first);
#pragma omp simd
    for (std::int64_t l = 0; l < terms; ++l)
      lanes[l] += static_cast<double>(losses[first + l]) * (weights ? weights[first + l] : 1.0f);
  }
}

// In double the squares are exact, without overflow or underflow.
SIMD_CLONES void add_squares(double* __restrict lanes, const float* __restrict values, std::int64_t count) {
  for (std::int64_t first = 0; first < count; first += sum_lanes) {
    const std::int64_t terms = std::min(sum_lanes, count - first);
#pragma omp simd
    for (std::int64_t l = 0; l < terms; ++l)
      lanes[l] += static_cast<double>(values[first + l]) * values[first + l];
  }
}

double sum_of(Lanes lanes) {
  for (std::size_t sums = lanes.size() / 2; sums > 0; sums /= 2)
    for (std::size_t i = 0; i < sums; ++i) lanes[i] = lanes[2 * i] + lanes[2 * i + 1];
  return lanes[0];
}

// Calls body(values, count) with each row of a matrix. Row r is of rank r. The order is that of the pieces
// which the ranks have (StepVerdict in operations.h); with one node, that of the ranks.
template <class Body>
void for_each_row(const Tensor& matrix, std::int64_t nodes, Body body) {
  const std::int64_t rows = matrix.shape[0];
  for (std::int64_t k = 0; k < rows; ++k) {
    const std::int64_t r = k % nodes * (rows / nodes) + k / nodes;
    body(matrix.as<double>() + r * matrix.stride[0], matrix.shape[1]);
  }
}

struct AdamCoefficients {
  float clip_scale, learning_rate, weight_decay, beta1, beta2, eps;
  float m_correction, v_correction;  // 1 / (1 - beta^t)
};

AdamCoefficients coefficients_of(const AdamW& op) {
  const auto t = static_cast<double>(op.state->updates);
  const auto correction = [t](float beta) {
    return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), t)));
  };
  return {op.state->clip_scale,
          op.state->learning_rate * op.lr_scale,
          op.weight_decay,
          op.beta1,
          op.beta2,
          op.eps,
          correction(op.beta1),
          correction(op.beta2)};
}

// The update is computed in `weights`. `param` receives the same value. Both are one array if the parameter
// is its own master.
SIMD_CLONES void adamw_block(float* param, float* weights, float* __restrict m, float* __restrict v,
                             const float* __restrict grad, std::int64_t count, const AdamCoefficients& a) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = a.clip_scale * grad[i];
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
    const float step =
        m[i] * a.m_correction / (std::sqrt(v[i] * a.v_correction) + a.eps) + a.weight_decay * weights[i];
    const float updated = weights[i] - a.learning_rate * step;
    weights[i] = updated;
    param[i] = updated;
  }
}
}  // namespace

// Uses one thread, because N is small. Memory traffic: 4 bytes a token (8 with weights).
void CpuDevice::launch(const AddLoss& op) {
  Lanes lanes{};
  add_losses(lanes.data(), op.losses.as<float>(), op.weights.as<float>(), op.losses.elements());
  *op.sum = std::fma(static_cast<double>(op.weight), sum_of(lanes), *op.sum);
}

// A thread owns chunks. Memory traffic: x once.
void CpuDevice::launch(const SquaredSums& op) {
  const std::int64_t count = op.x.elements(), chunks = op.sums.elements();
  const auto* x = op.x.as<float>();
  auto* sums = op.sums.as<double>();
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < chunks; ++i) {
    const std::int64_t first = i * SquaredSums::chunk;
    Lanes lanes{};
    add_squares(lanes.data(), x + first, std::min(SquaredSums::chunk, count - first));
    sums[i] = sum_of(lanes);
  }
}

namespace {
void judge(StepState& state, double loss, double squares, float clip) {
  state.loss = static_cast<float>(loss);
  state.grad_norm = static_cast<float>(std::sqrt(squares));
  state.clip_scale = clip > 0 && state.grad_norm > clip ? clip / state.grad_norm : 1.0f;
  const bool finite = std::isfinite(state.loss) && std::isfinite(state.grad_norm);
  const auto above = [](float value, float limit) { return limit > 0 && value > limit; };
  const bool spike = above(state.loss, state.loss_limit) || above(state.grad_norm, state.grad_norm_limit);
  state.skip_update = !finite ? StepState::not_finite : spike ? StepState::spike : 0;
  state.consecutive_skips = state.skip_update ? state.consecutive_skips + 1 : 0;
  state.updates += state.skip_update ? 0 : 1;
}

void set_flags(StepState& state, const Tensor& flags) {
  for (int f = 0; f < StepState::most_flags; ++f) {
    double largest = 0;
    for (std::int64_t r = 0; flags && r < flags.shape[0]; ++r)
      largest = std::max(largest, flags.as<double>()[r * flags.stride[0] + f]);
    state.flags[f] = static_cast<std::int32_t>(largest);
  }
}
}  // namespace

// Uses one thread: there is one sum of squares for 32768 elements of the model.
void CpuDevice::launch(const StepVerdict& op) {
  double loss = 0;
  for_each_row(op.losses, 1, [&](const double* losses, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) loss += losses[i];
  });
  Lanes lanes{};
  for (const auto& [sums, first] : op.squares) {
    std::int64_t number = first;
    for_each_row(sums, op.nodes, [&](const double* squares, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        lanes[static_cast<std::size_t>(number++ % sum_lanes)] += squares[i];
    });
  }
  judge(*op.state, loss, sum_of(lanes), op.clip);
  set_flags(*op.state, op.flags);
}

// A thread owns blocks of the parameter. Moves 28 bytes per parameter, or 36 with a separate master copy.
void CpuDevice::launch(const AdamW& op) {
  if (op.state->skip_update) return;
  const std::int64_t count = op.param.elements();
  float *param = op.param.as<float>(), *m = op.m.as<float>(), *v = op.v.as<float>();
  float* weights = op.master ? op.master.as<float>() : param;
  const float* grad = op.grad.as<float>();
  const AdamCoefficients coefficients = coefficients_of(op);
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < count; first += block_size)
    adamw_block(param + first, weights + first, m + first, v + first, grad + first,
                std::min(block_size, count - first), coefficients);
}

}  // namespace goat
