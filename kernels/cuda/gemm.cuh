// Dense matrix products: by cuBLASLt on the GPU (gemm.cu), by oneDNN on the simulated GPU
// (kernels/simt/gemm.cpp).
#pragma once

#include <memory>

#include "kernels/cuda/target.cuh"
#include "kernels/tensor.h"

namespace goat::GOAT_TARGET {

// A row-major operand: the tensor [rows, columns], or its transpose.
struct Factor {
  const Tensor& tensor;
  bool transposed;
};

// left and right are both f32 or both bf16; out has their dtype, or is f32; bias has the dtype of out. Sums
// are fp32. Products of f32 are full fp32, or with `tf32` products of operands rounded to TF32. Results are
// deterministic. Throws std::runtime_error that names the tensors.
class Gemm {
 public:
  explicit Gemm(Stream stream);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  // out [m, n] = left [m, k] right [k, n] + bias [n] (optional) + out (if accumulate), rounded once.
  // `workspace`: 256-byte aligned memory of workspace_bytes().
  void multiply(const Tensor& out, Factor left, Factor right, const Tensor& bias, bool accumulate, bool tf32,
                void* workspace);

  // The temporary memory of multiply() for these shapes.
  static std::size_t workspace_bytes(const Tensor& out, Factor left);

  // Whether multiply() can add this bias. The bias must be 16-byte aligned.
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
