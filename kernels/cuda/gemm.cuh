// Dense matrix products: by cuBLASLt on the GPU (gemm.cu), by oneDNN on the simulated GPU
// (kernels/simt/gemm.cpp).
#pragma once

#include <memory>

#include "kernels/cuda/target.cuh"
#include "kernels/operations.h"

namespace goat::GOAT_TARGET {

// A row-major operand: the tensor [rows, columns], or its transpose.
struct Factor {
  Tensor tensor;
  bool transposed = false;
};

// What happens to the fp32 sums of a product before they are rounded to `out`.
enum class Finish : std::uint8_t {
  none,
  gelu,           // aux = sums, out = gelu(sums); each is rounded once
  gelu_gradient,  // out = sums * gelu'(aux)
};

// out [m, n] = finish(left [m, k] right [k, n] + bias [n] + out). left and right are both f32 or both bf16;
// out has their dtype, or is f32; bias and aux have the dtype of out.
struct Product {
  Tensor out;
  Factor left, right;
  Tensor bias{};            // optional
  bool accumulate = false;  // whether out is one of the terms
  Factors factors = Factors::as_stored;
  Finish finish = Finish::none;
  Tensor aux{};  // [m, n], of `finish`
};

// Sums are fp32. Products of f32 are full fp32, or those of factors rounded to TF32 or bf16. Results
// are deterministic. Throws std::runtime_error that names the tensors.
class Gemm {
 public:
  explicit Gemm(Stream stream);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  // `workspace`: 256-byte aligned memory of workspace_bytes().
  void multiply(const Product& product, void* workspace);

  // The temporary memory of multiply(). It depends on the shapes alone.
  static std::size_t workspace_bytes(const Product& product);

  // Whether multiply() can compute the product, which must not be empty. A product without bias and finish
  // always can.
  bool supports(const Product& product);

 private:
  struct Library;
  Stream stream_;
  std::unique_ptr<Library> library_;
};

// What cuBLASLt's epilogues ask of their operands: a bias aligned to 16 bytes; `aux` aligned to 16 bytes,
// with rows of a multiple of 8 elements; no bias beside a gradient.
inline bool fits_epilogue(const Product& product) {
  const auto aligned = [](const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  };
  if (product.bias && (!aligned(product.bias) || product.finish == Finish::gelu_gradient)) return false;
  return product.finish == Finish::none || (aligned(product.aux) && product.aux.shape[1] % 8 == 0);
}

// The product in words, for messages.
inline std::string text_of(const Product& product) {
  const auto operand = [](const Tensor& t) {
    return std::string("'") + t.name + "' " + t.shape_text() + " " + name_of(t.dtype);
  };
  const auto factor = [&](const Factor& f) { return operand(f.tensor) + (f.transposed ? "^T" : ""); };
  std::string text = operand(product.out) + " = ";
  if (product.finish == Finish::gelu) text += "gelu of ";
  text += factor(product.left) + " x " + factor(product.right);
  if (product.bias) text += " + " + operand(product.bias);
  if (product.finish == Finish::gelu_gradient) text += ", times gelu' of " + operand(product.aux);
  return text;
}

}  // namespace goat::GOAT_TARGET
