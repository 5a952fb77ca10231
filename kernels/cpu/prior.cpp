// The relative prior on the CPU: Fourier table, positional lanes of q and k, gradients of alpha, beta, lambda
// and w, and softplus of the slope.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/fourier.h"

namespace goat {

namespace {
std::vector<double> frequencies_as_double(const Tensor& frequency) {
  const std::int64_t modes = frequency.shape[0];
  if (frequency.dtype == DType::f64) return {frequency.as<double>(), frequency.as<double>() + modes};
  return {frequency.as<float>(), frequency.as<float>() + modes};
}
}  // namespace

// A thread owns rows t of the table. Writes 8 T R bytes and computes T R double-precision cos and sin.
void CpuDevice::launch(const FourierTable& op) {
  const std::int64_t rows = op.table.shape[0], modes = op.table.shape[1], axes = op.positions.shape[1];
  const std::vector<double> frequency = frequencies_as_double(op.frequency);
  const auto* positions = op.positions.as<std::int32_t>();
  auto* table = op.table.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t r = 0; r < modes; ++r) {
      const FourierPair pair = fourier_pair(frequency[r], positions[t * axes + axis_of_mode(r, modes, axes)]);
      table[(t * modes + r) * 2] = pair.cosine;
      table[(t * modes + r) * 2 + 1] = pair.sine;
    }
}

namespace {
// Calls write(lanes, h, t) for each row of a strided x [B, T, H, d_h]. `lanes` points to coordinate d_c of
// the row. A thread owns tokens (b, t).
template <class Write>
void for_each_head_row(const Tensor& x, std::int64_t content_dim, Write write) {
  const std::int64_t batch = x.shape[0], rows = x.shape[1], heads = x.shape[2];
  float* lanes = x.as<float>() + content_dim;
#pragma omp parallel for collapse(2) schedule(static) if (batch * rows > 1)
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t h = 0; h < heads; ++h)
        write(lanes + b * x.stride[0] + t * x.stride[1] + h * x.stride[2], h, t);
}
}  // namespace

// Writes 4 (d_h - d_c) bytes for each (b, t, h) of q and of k. Parameters and tables stay in cache.
void CpuDevice::launch(const PriorLanesForward& op) {
  const std::int64_t modes = op.fourier.shape[1];
  const float* fourier = op.fourier.as<float>() + op.first_position * modes * 2;
  if (op.q) {
    const std::int64_t lane_dim = op.q.shape[3] - op.content_dim;
    const float *alpha = op.alpha.as<float>(), *beta = op.beta.as<float>();
    for_each_head_row(
        op.q, op.content_dim, [=, scale = op.scale](float* lanes, std::int64_t h, std::int64_t t) {
          for (std::int64_t r = 0; r < modes; ++r) {
            const float cosine = fourier[(t * modes + r) * 2], sine = fourier[(t * modes + r) * 2 + 1];
            lanes[2 * r] = (alpha[h * modes + r] * cosine + beta[h * modes + r] * sine) / scale;
            lanes[2 * r + 1] = (alpha[h * modes + r] * sine - beta[h * modes + r] * cosine) / scale;
          }
          lanes[2 * modes] = lanes[2 * modes + 1] = PriorLanesForward::key_bias_unit;
          std::fill(lanes + 2 * modes + 2, lanes + lane_dim, 0.0f);
        });
  }
  if (op.k) {
    const std::int64_t lane_dim = op.k.shape[3] - op.content_dim, table_rows = op.key_bias.shape[1];
    const float* key_bias = op.key_bias.as<float>() + op.first_position;
    for_each_head_row(op.k, op.content_dim,
                      [=, unit = op.scale * PriorLanesForward::key_bias_unit](float* lanes, std::int64_t h,
                                                                              std::int64_t t) {
                        std::copy_n(fourier + t * modes * 2, modes * 2, lanes);
                        // hi holds all digits of an fp32 value, so that lo is zero like the spare lanes.
                        lanes[2 * modes] = key_bias[h * table_rows + t] / unit;
                        std::fill(lanes + 2 * modes + 1, lanes + lane_dim, 0.0f);
                      });
  }
}

namespace {
// centred[t] = position - (mean position) along one axis; 0 for negative positions, whose Fourier features
// are zero.
void centre_positions(double* centred, const Tensor& positions, std::int64_t axis) {
  const std::int64_t rows = positions.shape[0], axes = positions.shape[1];
  const auto* position = positions.as<std::int32_t>() + axis;
  double sum = 0, count = 0;
  for (std::int64_t t = 0; t < rows; ++t)
    if (position[t * axes] >= 0) sum += position[t * axes], count += 1;
  for (std::int64_t t = 0; t < rows; ++t)
    centred[t] = position[t * axes] >= 0 ? position[t * axes] - sum / count : 0;
}

// Sums over rows t, where x_t is dA or dC of one mode, e_t = (cos, sin), and (sin, -cos) is perpendicular to
// e_t. p is the position.
struct ModeSums {
  double along = 0;            // sum x . (cos, sin)
  double across = 0;           // sum x . (sin, -cos)
  double position_along = 0;   // sum p x . (cos, sin)
  double position_across = 0;  // sum p x . (sin, -cos)

  void add(const ModeSums& other) {
    along += other.along;
    across += other.across;
    position_along += other.position_along;
    position_across += other.position_across;
  }
};

struct LaneGradientMemory {
  double* positions;     // [A, T], centred
  ModeSums* parts;       // [B, H, R]
  ModeSums* query_sums;  // [H, R]
  ModeSums* key_sums;    // [H_k, R]
  std::size_t bytes;

  explicit LaneGradientMemory(const PriorLanesBackward& op, void* workspace = nullptr) {
    const std::int64_t head_modes = op.alpha.elements();
    WorkspaceArrays arrays(workspace);
    positions = arrays.next<double>(op.positions.elements());
    parts = arrays.next<ModeSums>(op.dq_lanes.shape[0] * head_modes);
    query_sums = arrays.next<ModeSums>(head_modes);
    key_sums = arrays.next<ModeSums>(head_modes);
    bytes = arrays.bytes();
  }
};

// x and e point to the first element of the mode in [T, R, 2] arrays.
ModeSums sum_mode(const float* x, const float* e, const double* position, std::int64_t rows,
                  std::int64_t modes) {
  ModeSums sums;
  for (std::int64_t t = 0; t < rows; ++t) {
    const double p = position[t];
    const double along = static_cast<double>(x[0]) * e[0] + static_cast<double>(x[1]) * e[1];
    const double across = static_cast<double>(x[0]) * e[1] - static_cast<double>(x[1]) * e[0];
    sums.add({along, across, p * along, p * across});
    x += 2 * modes;
    e += 2 * modes;
  }
  return sums;
}

// sums [heads, R] = sums of every head and mode of lane_gradients over the rows and the batch. A thread owns
// (sequence, head) pairs. The sums of the pairs are then added in order.
void sum_modes(ModeSums* sums, const Tensor& lane_gradients, const PriorLanesBackward& op,
               const LaneGradientMemory& memory) {
  const std::int64_t batch = lane_gradients.shape[0], heads = lane_gradients.shape[1],
                     rows = lane_gradients.shape[2], modes = op.alpha.shape[1], axes = op.positions.shape[1];
  const float *gradients = lane_gradients.as<float>(), *fourier = op.fourier.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t bh = 0; bh < batch * heads; ++bh)
    for (std::int64_t r = 0; r < modes; ++r) {
      const double* positions = memory.positions + axis_of_mode(r, modes, axes) * rows;
      memory.parts[bh * modes + r] =
          sum_mode(gradients + (bh * rows * modes + r) * 2, fourier + r * 2, positions, rows, modes);
    }
  std::fill_n(sums, heads * modes, ModeSums{});
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t hr = 0; hr < heads * modes; ++hr) sums[hr].add(memory.parts[b * heads * modes + hr]);
}

// dfrequency_r += sum_h [ sum_i p_i (beta (cos, sin) - alpha (sin, -cos)) . dA_i
//                           - sum_j p_j (sin, -cos) . dC_j ]
void accumulate_frequency_gradient(const PriorLanesBackward& op, const ModeSums* query_sums,
                                   const ModeSums* key_sums) {
  const std::int64_t heads = op.alpha.shape[0], modes = op.alpha.shape[1],
                     group = heads / op.dk_lanes.shape[1];  // heads of q that share a head of k
  for (std::int64_t r = 0; r < modes; ++r) {
    double sum = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t hr = h * modes + r;
      const double of_key = h % group == 0 ? key_sums[h / group * modes + r].position_across : 0;
      sum += op.beta.as<float>()[hr] * query_sums[hr].position_along -
             op.alpha.as<float>()[hr] * query_sums[hr].position_across - of_key;
    }
    op.dfrequency.as<float>()[r] += static_cast<float>(sum);
  }
}

// dlambda += sum_{b, j} dslope
void accumulate_slope_gradient(const Tensor& dlambda, const Tensor& dslope) {
  const std::int64_t batch = dslope.shape[0], heads = dslope.shape[1], rows = dslope.shape[2];
  const float* slope_gradients = dslope.as<float>();
  float* gradients = dlambda.as<float>();
#pragma omp parallel for schedule(static)
  for (std::int64_t h = 0; h < heads; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t t = 0; t < rows; ++t) sum += slope_gradients[(b * heads + h) * rows + t];
    gradients[h] += static_cast<float>(sum);
  }
}
}  // namespace

std::size_t CpuDevice::workspace(const PriorLanesBackward& op) const { return LaneGradientMemory(op).bytes; }

// Reads dq_lanes, dk_lanes and dslope once: 4 B T (H (2R + 1) + 2 H_k R) bytes. All sums are in double,
// because the terms of a gradient nearly cancel. A common offset of all positions does not change dfrequency:
// it changes the dA part and the dC part by opposite amounts, because sum_i a_i' . dA_i + sum_j c_j' . dC_j =
// 0. Therefore both parts count positions from their mean, which keeps the effect of the fp32 rounding of dA
// and dC small.
void CpuDevice::launch(const PriorLanesBackward& op) {
  const LaneGradientMemory memory(op, workspace_.take(op));
  if (op.alpha.shape[0] == 0) return;
  for (std::int64_t axis = 0; axis < op.positions.shape[1]; ++axis)
    centre_positions(memory.positions + axis * op.positions.shape[0], op.positions, axis);

  sum_modes(memory.query_sums, op.dq_lanes, op, memory);
  for (std::int64_t hr = 0; hr < op.alpha.elements(); ++hr) {
    op.dalpha.as<float>()[hr] += static_cast<float>(memory.query_sums[hr].along);
    op.dbeta.as<float>()[hr] += static_cast<float>(memory.query_sums[hr].across);
  }
  if (op.dfrequency) {
    sum_modes(memory.key_sums, op.dk_lanes, op, memory);
    accumulate_frequency_gradient(op, memory.query_sums, memory.key_sums);
  }
  if (op.dlambda) accumulate_slope_gradient(op.dlambda, op.dslope);
}

// There is one number per head, so that this is serial. It computes in double, so that neither tail of the
// exponential loses digits.
void CpuDevice::launch(const SoftplusForward& op) {
  const float* x = op.x.as<float>();
  float* out = op.out.as<float>();
  for (std::int64_t i = 0; i < op.out.elements(); ++i) {
    const double value = x[i];
    out[i] = static_cast<float>(std::max(value, 0.0) + std::log1p(std::exp(-std::abs(value))));
  }
}

void CpuDevice::launch(const SoftplusBackward& op) {
  const float *x = op.x.as<float>(), *dout = op.dout.as<float>();
  float* dx = op.dx.as<float>();
  for (std::int64_t i = 0; i < op.dx.elements(); ++i)
    dx[i] += static_cast<float>(dout[i] / (1 + std::exp(-static_cast<double>(x[i]))));
}

}  // namespace goat
