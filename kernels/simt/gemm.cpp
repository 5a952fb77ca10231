// The counterpart of kernels/cuda/gemm.cu: oneDNN's sgemm. bf16 operands are converted to fp32, which is
// exact, and the result is rounded once. The fp32 copies are memory of the host, not of the simulated device.
#include "kernels/cuda/gemm.cuh"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/simt/streams.h"

namespace goat::on_simt {

namespace {
std::vector<float> widened(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  if (tensor.dtype == DType::bf16)
    std::transform(static_cast<const bf16*>(tensor.data),
                   static_cast<const bf16*>(tensor.data) + values.size(), values.begin(),
                   [](bf16 value) { return __bfloat162float(value); });
  else
    std::copy_n(tensor.as<float>(), values.size(), values.begin());
  return values;
}

// Rounds to 10 bits of mantissa like cvt.rna.tf32.f32: to nearest, ties away from zero.
void round_to_tf32(std::vector<float>& values) {
  for (float& value : values) {
    if (!std::isfinite(value)) continue;
    const std::uint32_t bits = (std::bit_cast<std::uint32_t>(value) + 0x1000u) & 0xFFFFE000u;
    value = std::bit_cast<float>(bits);
  }
}

void store(const Tensor& tensor, const std::vector<float>& values) {
  if (tensor.dtype == DType::bf16)
    std::transform(values.begin(), values.end(), static_cast<bf16*>(tensor.data),
                   [](float value) { return __float2bfloat16(value); });
  else
    std::copy(values.begin(), values.end(), tensor.as<float>());
}
}  // namespace

struct Gemm::Library {};

Gemm::Gemm(Stream stream) : stream_(stream) {}
Gemm::~Gemm() = default;

bool Gemm::can_add_bias(const Tensor&, Factor, Factor, const Tensor& bias, bool) {
  return is_aligned_bias(bias);
}

std::size_t Gemm::workspace_bytes(const Tensor&, Factor) { return 0; }

// What multiply() enqueues.
static void multiply_now(const Tensor& out, Factor left, Factor right, const Tensor& bias, bool accumulate,
                         bool tf32) {
  const std::int64_t m = out.shape[0], n = out.shape[1], k = left.tensor.shape[left.transposed ? 0 : 1];
  if (m == 0 || n == 0) return;
  std::vector<float> sum = accumulate ? widened(out) : std::vector<float>(static_cast<std::size_t>(m * n));
  if (bias) {
    if (!is_aligned_bias(bias))
      throw std::runtime_error(std::string("Gemm: '") + bias.name + "' is not aligned to 16 bytes");
    const std::vector<float> row = widened(bias);
    for (std::int64_t i = 0; i < m * n; ++i)
      sum[static_cast<std::size_t>(i)] += row[static_cast<std::size_t>(i % n)];
  }
  if (k > 0) {
    std::vector<float> a = widened(left.tensor), b = widened(right.tensor);
    if (tf32 && left.tensor.dtype == DType::f32)
      for (std::vector<float>* factor : {&a, &b}) round_to_tf32(*factor);
    const dnnl_status_t status =
        dnnl_sgemm(left.transposed ? 'T' : 'N', right.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data(),
                   left.tensor.shape[1], b.data(), right.tensor.shape[1], 1.0f, sum.data(), n);
    if (status != dnnl_success)
      throw std::runtime_error("oneDNN sgemm failed with status " + std::to_string(status) + " for '" +
                               out.name + "' " + out.shape_text());
  }
  store(out, sum);
}

void Gemm::multiply(const Tensor& out, Factor left, Factor right, const Tensor& bias, bool accumulate,
                    bool tf32, void*) {
  enqueue_work(stream_, [=, left_tensor = left.tensor, left_transposed = left.transposed,
                         right_tensor = right.tensor, right_transposed = right.transposed] {
    multiply_now(out, {left_tensor, left_transposed}, {right_tensor, right_transposed}, bias, accumulate,
                 tf32);
  });
}

}  // namespace goat::on_simt
