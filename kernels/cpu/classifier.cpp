// Softmax cross entropy. With m = max_v z_v, e_v = exp(z_v - m), t the target, E = sum over v != t of e_v:
//   loss = log(e_t + E) - (z_t - m),
//   dloss/dz_v = e_v / (e_t + E) for v != t,   dloss/dz_t = -E / (e_t + E).
// E leaves out the target, so that neither loss nor gradient suffers from cancellation if the target has
// almost all of the probability.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/index_range.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {

// Number of terms that are added in fp32 before their sum is added to a double. This allows vectorisation and
// keeps the sum over a vocabulary within a few ulp.
constexpr std::int64_t block = 512;

SIMD_CLONES float maximum(const float* values, std::int64_t count) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::int64_t v = 0; v < count; ++v) largest = std::max(largest, values[v]);
  return largest;
}

// sum_v exp(logits[v] - largest)
SIMD_CLONES double sum_of_exponentials(const float* logits, std::int64_t count, float largest) {
  double total = 0;
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t last = std::min(count, first + block);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t v = first; v < last; ++v) sum += simd::exp(logits[v] - largest);
    total += sum;
  }
  return total;
}

// The same sum. Each value is replaced by its exponential.
SIMD_CLONES double exponentiate(float* values, std::int64_t count, float largest) {
  double total = 0;
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t last = std::min(count, first + block);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t v = first; v < last; ++v) {
      values[v] = simd::exp(values[v] - largest);
      sum += values[v];
    }
    total += sum;
  }
  return total;
}

SIMD_CLONES void scale(float* values, std::int64_t count, float factor) {
#pragma omp simd
  for (std::int64_t v = 0; v < count; ++v) values[v] *= factor;
}

float loss_from(double others, float target_logit, float largest) {
  const double target = static_cast<double>(target_logit) - static_cast<double>(largest);
  return static_cast<float>(std::log1p(std::expm1(target) + others) - target);
}

float loss_of_row(const float* logits, std::int64_t vocab, std::int32_t target) {
  const float largest = maximum(logits, vocab);
  const double others = sum_of_exponentials(logits, target, largest) +
                        sum_of_exponentials(logits + target + 1, vocab - target - 1, largest);
  return loss_from(others, logits[target], largest);
}

// Overwrites the row with weight times its gradient. Returns the loss.
float loss_and_gradient_of_row(float* logits, std::int64_t vocab, std::int32_t target, float weight) {
  const float largest = maximum(logits, vocab), target_logit = logits[target];
  const double others =
      exponentiate(logits, target, largest) + exponentiate(logits + target + 1, vocab - target - 1, largest);
  const double sum = std::exp(static_cast<double>(target_logit) - static_cast<double>(largest)) + others;
  scale(logits, vocab, static_cast<float>(weight / sum));
  logits[target] = static_cast<float>(-weight * (others / sum));
  return loss_from(others, target_logit, largest);
}

}  // namespace

// A thread owns whole rows. A row (200 kB at V = 50,257) is read from memory once, stays in the
// second-level cache for the later passes, and its gradient is written once. This moves 2 N V_p floats, or
// N V without backward.
void CpuDevice::launch(const CrossEntropy& op) {
  require_in_range("cross_entropy", op.targets, -1, op.vocab);
  const std::int64_t rows = op.logits.shape[0], padded_vocab = op.logits.shape[1];
  float* logits = op.logits.as<float>();
  float* losses = op.losses.as<float>();
  const std::int32_t* targets = op.targets.as<std::int32_t>();
  const float* weights = op.weights ? op.weights.as<float>() : nullptr;
#pragma omp parallel for schedule(static)
  for (std::int64_t n = 0; n < rows; ++n) {
    float* row = logits + n * padded_vocab;
    const bool masked = targets[n] < 0;
    if (!op.backward) {
      losses[n] = masked ? 0.0f : loss_of_row(row, op.vocab, targets[n]);
    } else {
      const float weight = op.weight * (weights ? weights[n] : 1.0f);
      losses[n] = masked ? 0.0f : loss_and_gradient_of_row(row, op.vocab, targets[n], weight);
      std::fill(row + (masked ? 0 : op.vocab), row + padded_vocab, 0.0f);
    }
  }
}

}  // namespace goat
