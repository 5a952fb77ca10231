// Linear layers on the CPU, always in full fp32. They use oneDNN's sgemm, which runs on all OpenMP threads
// and gives the same bits for the same number of threads. It allocates its temporary memory itself.
// dev/results/gemm_cpu.md has the measurements behind this choice.
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {

// A row-major operand of a GEMM: the tensor or its transpose.
struct Factor {
  const Tensor& tensor;  // [rows, columns], contiguous
  bool transposed;
};

// out[m, n] = left[m, k] right[k, n] + (accumulate ? out : 0)
void multiply(const Tensor& out, Factor left, Factor right, bool accumulate) {
  const std::int64_t m = out.shape[0], n = out.shape[1], k = left.tensor.shape[left.transposed ? 0 : 1];
  const dnnl_status_t status =
      dnnl_sgemm(left.transposed ? 'T' : 'N', right.transposed ? 'T' : 'N', m, n, k, 1.0f,
                 left.tensor.as<float>(), left.tensor.shape[1], right.tensor.as<float>(),
                 right.tensor.shape[1], accumulate ? 1.0f : 0.0f, out.as<float>(), n);
  if (status != dnnl_success)
    throw std::runtime_error("oneDNN sgemm failed with status " + std::to_string(status) + " for '" +
                             out.name + "' " + out.shape_text() + " = '" + left.tensor.name + "' " +
                             left.tensor.shape_text() + " x '" + right.tensor.name + "' " +
                             right.tensor.shape_text());
}

constexpr std::int64_t block_columns = 64;

// sums[c] += sum over rows of matrix[row, c], for `columns` <= block_columns columns, in the order of the
// rows. Accumulates in double, so that a large micro-batch costs no accuracy.
SIMD_CLONES void add_column_sums(float* sums, const float* matrix, std::int64_t rows, std::int64_t stride,
                                 std::int64_t columns) {
  std::array<double, block_columns> total{};
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* values = matrix + row * stride;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) total[static_cast<std::size_t>(c)] += values[c];
  }
  for (std::int64_t c = 0; c < columns; ++c)
    sums[c] = static_cast<float>(sums[c] + total[static_cast<std::size_t>(c)]);
}

}  // namespace

// First every row of out is set to the bias, then the GEMM adds the product. This writes out once more
// than without bias.
void CpuDevice::launch(const LinearForward& op) {
  if (op.bias) {
    const float* bias = op.bias.as<float>();
    float* out = op.out.as<float>();
    const std::int64_t rows = op.out.shape[0], columns = op.out.shape[1];
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) std::copy_n(bias, columns, out + row * columns);
  }
  multiply(op.out, {op.x, false}, {op.weight, true}, static_cast<bool>(op.bias));
}

void CpuDevice::launch(const LinearBackwardInput& op) {
  multiply(op.dx, {op.dout, false}, {op.weight, false}, false);
}

// dbias: a thread owns blocks of columns of dout and reads each element once.
void CpuDevice::launch(const LinearBackwardWeight& op) {
  multiply(op.dweight, {op.dout, true}, {op.x, false}, true);
  if (!op.dbias) return;
  float* dbias = op.dbias.as<float>();
  const float* dout = op.dout.as<float>();
  const std::int64_t rows = op.dout.shape[0], columns = op.dout.shape[1];
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < columns; first += block_columns)
    add_column_sums(dbias + first, dout + first, rows, columns, std::min(block_columns, columns - first));
}

// The product goes through memory in any case: a GELU of one tile at a time would need a GEMM of our own.
void CpuDevice::launch(const LinearGeluForward& op) {
  CpuDevice::launch(LinearForward{.out = op.projected, .x = op.x, .weight = op.weight, .bias = op.bias});
  CpuDevice::launch(GeluForward{.out = op.out, .x = op.projected});
}

void CpuDevice::launch(const LinearGeluBackwardInput& op) {
  CpuDevice::launch(LinearBackwardInput{.dx = op.dprojected, .dout = op.dout, .weight = op.weight});
  CpuDevice::launch(GeluBackward{.dx = op.dprojected, .dout = op.dprojected, .x = op.projected});
}

}  // namespace goat
