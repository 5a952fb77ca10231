// Dense matrix products: cuBLASLt on the GPU (gemm.cu), oneDNN in its place where the kernels are simulated
// (kernels/simt/gemm.cpp).
#pragma once

#include <memory>

#include "kernels/cuda/target.cuh"
#include "kernels/tensor.h"

namespace goat::GOAT_TARGET {

// A row-major operand: the tensor [rows, columns] as it stands, or its transpose.
struct Factor {
  const Tensor& tensor;
  bool transposed;
};

// All operands are f32 (full fp32 products, or with `tf32` of operands rounded to TF32) or all bf16; sums are
// fp32. Deterministic. Throws std::runtime_error naming the tensors.
class Gemm {
 public:
  explicit Gemm(Stream stream);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  // out [m, n] = left [m, k] right [k, n] + bias [n] (optional) + out (if accumulate), rounded once.
  void multiply(const Tensor& out, Factor left, Factor right, const Tensor& bias, bool accumulate, bool tf32);

  // Whether multiply takes this bias; one without 16-byte alignment it never does.
  bool can_add_bias(const Tensor& out, Factor left, Factor right, const Tensor& bias, bool tf32);

 private:
  struct Library;
  Stream stream_;
  std::unique_ptr<Library> library_;
};

inline bool is_aligned_bias(const Tensor& bias) {
  return reinterpret_cast<std::uintptr_t>(bias.data) % 16 == 0;
}

}  // namespace goat::GOAT_TARGET
