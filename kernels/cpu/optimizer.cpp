// Loss, gradient norm and AdamW. Sums are computed over blocks of fixed size, and the blocks are added in
// order, so that no result depends on the number of threads.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {
constexpr std::int64_t block_size = 16384;  // elements per thread and work item

std::int64_t blocks_of(std::int64_t count) { return (count + block_size - 1) / block_size; }

SIMD_CLONES double sum_of_losses(const float* losses, const float* weights, std::int64_t count) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t n = 0; n < count; ++n)
    total += static_cast<double>(losses[n]) * (weights ? weights[n] : 1.0f);
  return total;
}

SIMD_CLONES double sum_of_squares(const float* values, std::int64_t count) {
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t i = 0; i < count; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

// parts [blocks]: memory for the sums of the blocks.
double sum_of_squares(const Tensor& tensor, double* parts) {
  const std::int64_t count = tensor.elements(), blocks = blocks_of(count);
  const float* values = tensor.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t block = 0; block < blocks; ++block)
    parts[block] =
        sum_of_squares(values + block * block_size, std::min(block_size, count - block * block_size));
  return std::accumulate(parts, parts + blocks, 0.0);
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
  return {op.state->clip_scale, op.state->learning_rate, op.weight_decay, op.beta1, op.beta2, op.eps,
          correction(op.beta1), correction(op.beta2)};
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

// Uses one thread, because N is small.
void CpuDevice::launch(const AddLoss& op) {
  const double sum =
      op.weight * sum_of_losses(op.losses.as<float>(), op.weights.as<float>(), op.losses.elements());
  op.state->loss = static_cast<float>(op.state->loss + sum);
}

// The sums of the blocks of the largest gradient.
std::size_t CpuDevice::workspace(const GradientNorm& op) const {
  std::int64_t blocks = 0;
  for (const Tensor& grad : op.grads) blocks = std::max(blocks, blocks_of(grad.elements()));
  return static_cast<std::size_t>(blocks) * sizeof(double);
}

// A thread owns blocks of each gradient. Moves 4 bytes per parameter.
void CpuDevice::launch(const GradientNorm& op) {
  auto* parts = static_cast<double*>(workspace_.take(op));
  double squares = 0;
  for (const Tensor& grad : op.grads) squares += sum_of_squares(grad, parts);
  StepState& state = *op.state;
  state.grad_norm = static_cast<float>(std::sqrt(squares));
  state.clip_scale = op.clip > 0 && state.grad_norm > op.clip ? op.clip / state.grad_norm : 1.0f;
  const bool finite = std::isfinite(state.loss) && std::isfinite(state.grad_norm);
  const auto above = [](float value, float limit) { return limit > 0 && value > limit; };
  const bool spike = above(state.loss, state.loss_limit) || above(state.grad_norm, state.grad_norm_limit);
  state.skip_update = !finite ? StepState::not_finite : spike ? StepState::spike : 0;
  state.consecutive_skips = state.skip_update ? state.consecutive_skips + 1 : 0;
  state.updates += state.skip_update ? 0 : 1;
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
