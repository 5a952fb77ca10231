// Linear layers on the CPU, in full fp32 or with factors rounded to bf16 (bf16_product.h). They use oneDNN,
// which runs on all OpenMP threads and gives the same bits for the same number of threads. Its sgemm
// allocates its temporary memory itself. dev/results/gemm_cpu.md has the measurements behind this choice.
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/simd.h"

namespace goat {

namespace {

// A row-major operand of a GEMM: the tensor or its transpose.
struct Factor {
  Tensor tensor;  // [rows, columns], contiguous
  bool transposed;
};

// out[m, n] = left[m, k] right[k, n] + (accumulate ? out : 0)
struct Product {
  Tensor out;
  Factor left, right;
  bool accumulate;

  ProductShape shape() const {
    return {out.shape[0], out.shape[1], left.tensor.shape[left.transposed ? 0 : 1], left.transposed,
            right.transposed};
  }
};

// A product that sums over rows of both factors (a weight gradient) gives sgemm this many rows at a time:
// over thousands of rows, packing the transposed factor takes up to a quarter of its time
// (dev/results/gemm_cpu.md).
constexpr std::int64_t rows_at_once = 512;

void multiply(const Product& product) {
  const auto& [out, left, right, accumulate] = product;
  const auto [m, n, k, left_transposed, right_transposed] = product.shape();
  if (k == 0 && !accumulate) std::fill_n(out.as<float>(), m * n, 0.0f);  // sgemm refuses k = 0
  const std::int64_t step = left_transposed && !right_transposed ? rows_at_once : k;
  for (std::int64_t row = 0; row < k; row += step) {
    const dnnl_status_t status =
        dnnl_sgemm(left_transposed ? 'T' : 'N', right_transposed ? 'T' : 'N', m, n, std::min(step, k - row),
                   1.0f, left.tensor.as<float>() + row * left.tensor.shape[1], left.tensor.shape[1],
                   right.tensor.as<float>() + row * right.tensor.shape[1], right.tensor.shape[1],
                   accumulate || row > 0 ? 1.0f : 0.0f, out.as<float>(), n);
    if (status != dnnl_success)
      throw std::runtime_error("oneDNN sgemm failed with status " + std::to_string(status) + " for '" +
                               out.name + "' " + out.shape_text() + " = '" + left.tensor.name + "' " +
                               left.tensor.shape_text() + " x '" + right.tensor.name + "' " +
                               right.tensor.shape_text());
  }
}

// The product of an operation whose factors may be rounded. `workspace`: workspace_of(product, factors).
void multiply(const Product& product, Factors factors, void* workspace) {
  if (factors != Factors::bf16) return multiply(product);
  multiply_bf16(bf16_form(), product.shape(), product.out.as<float>(), product.left.tensor.as<float>(),
                product.right.tensor.as<float>(), product.accumulate, workspace);
}

std::size_t workspace_of(const Product& product, Factors factors) {
  return factors == Factors::bf16 ? bf16_workspace(bf16_form(), product.shape()) : 0;
}

Product product_of(const LinearForward& op) {
  return {op.out, {op.x, false}, {op.weight, true}, static_cast<bool>(op.bias)};
}
Product product_of(const LinearBackwardInput& op) {
  return {op.dx, {op.dout, false}, {op.weight, false}, false};
}
Product product_of(const LinearBackwardWeight& op) {
  return {op.dweight, {op.dout, true}, {op.x, false}, true};
}

// The product before a GELU, and the one before its gradient.
LinearForward product_before(const LinearGeluForward& op) {
  return {.out = op.projected, .x = op.x, .weight = op.weight, .bias = op.bias, .factors = op.factors};
}
LinearBackwardInput product_before(const LinearGeluBackwardInput& op) {
  return {.dx = op.dprojected, .dout = op.dout, .weight = op.weight, .factors = op.factors};
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

// First every row of out is set to the bias, then the GEMM adds the product. This writes out once more than
// without bias.
void forward(const LinearForward& op, void* workspace) {
  if (has_few_rows(op)) return few_rows(op);
  if (op.bias) {
    const float* bias = op.bias.as<float>();
    float* out = op.out.as<float>();
    const std::int64_t rows = op.out.shape[0], columns = op.out.shape[1];
#pragma omp parallel for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) std::copy_n(bias, columns, out + row * columns);
  }
  multiply(product_of(op), op.factors, workspace);
}
}  // namespace

std::size_t CpuDevice::workspace(const LinearForward& op) const {
  return workspace_of(product_of(op), op.factors);
}
std::size_t CpuDevice::workspace(const LinearBackwardInput& op) const {
  return workspace_of(product_of(op), op.factors);
}
std::size_t CpuDevice::workspace(const LinearBackwardWeight& op) const {
  return workspace_of(product_of(op), op.factors);
}
std::size_t CpuDevice::workspace(const LinearGeluForward& op) const {
  return CpuDevice::workspace(product_before(op));
}
std::size_t CpuDevice::workspace(const LinearGeluBackwardInput& op) const {
  return CpuDevice::workspace(product_before(op));
}

void CpuDevice::launch(const LinearForward& op) { forward(op, workspace_.take(op)); }

void CpuDevice::launch(const LinearBackwardInput& op) {
  multiply(product_of(op), op.factors, workspace_.take(op));
}

// dbias: a thread owns blocks of columns of dout and reads each element once.
void CpuDevice::launch(const LinearBackwardWeight& op) {
  multiply(product_of(op), op.factors, workspace_.take(op));
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
  forward(product_before(op), workspace_.take(op));
  CpuDevice::launch(GeluForward{.out = op.out, .x = op.projected});
}

void CpuDevice::launch(const LinearGeluBackwardInput& op) {
  multiply(product_of(product_before(op)), op.factors, workspace_.take(op));
  CpuDevice::launch(GeluBackward{.dx = op.dprojected, .dout = op.dprojected, .x = op.projected});
}

}  // namespace goat
