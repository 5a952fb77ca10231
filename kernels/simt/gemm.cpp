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

#include "kernels/cuda/gelu.cuh"
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

void round_to_bf16(std::vector<float>& values) {
  for (float& value : values) value = __bfloat162float(__float2bfloat16(value));
}

void store(const Tensor& tensor, const std::vector<float>& values) {
  if (tensor.dtype == DType::bf16)
    std::transform(values.begin(), values.end(), static_cast<bf16*>(tensor.data),
                   [](float value) { return __float2bfloat16(value); });
  else
    std::copy(values.begin(), values.end(), tensor.as<float>());
}

void add_bias(std::vector<float>& sums, const Tensor& bias) {
  const std::vector<float> row = widened(bias);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += row[i % row.size()];
}

// sums [m, n] += left right
void add_product(std::vector<float>& sums, const Product& product) {
  const Factor &left = product.left, &right = product.right;
  const std::int64_t m = product.out.shape[0], n = product.out.shape[1],
                     k = left.tensor.shape[left.transposed ? 0 : 1];
  if (k == 0) return;
  std::vector<float> a = widened(left.tensor), b = widened(right.tensor);
  if (product.factors != Factors::as_stored && left.tensor.dtype == DType::f32)
    for (std::vector<float>* factor : {&a, &b})
      product.factors == Factors::tf32 ? round_to_tf32(*factor) : round_to_bf16(*factor);
  const dnnl_status_t status =
      dnnl_sgemm(left.transposed ? 'T' : 'N', right.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data(),
                 left.tensor.shape[1], b.data(), right.tensor.shape[1], 1.0f, sums.data(), n);
  if (status != dnnl_success)
    throw std::runtime_error("oneDNN sgemm failed with status " + std::to_string(status) + " for " +
                             text_of(product));
}

void finish(std::vector<float>& sums, const Product& product) {
  if (product.finish == Finish::gelu) {
    store(product.aux, sums);
    std::transform(sums.begin(), sums.end(), sums.begin(), [](float x) { return gelu(x); });
  } else if (product.finish == Finish::gelu_gradient) {
    const std::vector<float> aux = widened(product.aux);
    std::transform(sums.begin(), sums.end(), aux.begin(), sums.begin(),
                   [](float sum, float x) { return sum * gelu_derivative(x); });
  }
}

// What multiply() enqueues.
void multiply_now(const Product& product) {
  const auto size = static_cast<std::size_t>(product.out.elements());
  if (size == 0) return;
  if (!fits_epilogue(product))
    throw std::runtime_error("Gemm: operands do not fit the epilogue: " + text_of(product));
  std::vector<float> sums = product.accumulate ? widened(product.out) : std::vector<float>(size);
  if (product.bias) add_bias(sums, product.bias);
  add_product(sums, product);
  finish(sums, product);
  store(product.out, sums);
}
}  // namespace

struct Gemm::Library {};

Gemm::Gemm(Stream stream) : stream_(stream) {}
Gemm::~Gemm() = default;

bool Gemm::supports(const Product& product) { return fits_epilogue(product); }

std::size_t Gemm::workspace_bytes(const Product&) { return 0; }

void Gemm::multiply(const Product& product, void*) {
  enqueue_work(stream_, [product] { multiply_now(product); });
}

}  // namespace goat::on_simt
