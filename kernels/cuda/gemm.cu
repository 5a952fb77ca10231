// Gemm by cuBLASLt. cuBLASLt's matrices are column-major. A row-major matrix [rows, columns] is the
// column-major matrix columns x rows with leading dimension `columns`, that is, the transpose. So out = left
// right is computed as
//   out^T = right^T left^T,
// where `right` is cuBLASLt's A, `left` its B, and the bias runs along the rows of out^T.
#include "kernels/cuda/gemm.cuh"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "kernels/cuda/runtime.cuh"

namespace goat::on_cuda {

namespace {

constexpr std::size_t most_workspace = 32 << 20;  // NVIDIA's recommendation for Hopper

std::string text_of(const Tensor& tensor) {
  return std::string("'") + tensor.name + "' " + tensor.shape_text() + " " + name_of(tensor.dtype);
}

void check_cublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusName(status));
}

// The alignment of the tensor's memory in bytes, at most 256; cuBLASLt uses no larger one.
std::uint32_t alignment_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  std::uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

cublasLtMatrixLayoutOpaque_t layout_of(const Tensor& tensor) {
  cublasLtMatrixLayoutOpaque_t layout;
  const auto rows = static_cast<std::uint64_t>(tensor.shape[0]),
             columns = static_cast<std::uint64_t>(tensor.shape[1]);
  check_cublas(cublasLtMatrixLayoutInit(&layout, tensor.dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F,
                                        columns, rows, tensor.shape[1]),
               "layout");
  return layout;
}

// A product as cuBLASLt describes it. The opaque structures hold no resources.
struct Product {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t out, left, right;

  Product(const Tensor& out_, Factor left_, Factor right_, const Tensor& bias, bool tf32)
      : out(layout_of(out_)), left(layout_of(left_.tensor)), right(layout_of(right_.tensor)) {
    const cublasComputeType_t products =
        tf32 && left_.tensor.dtype == DType::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check_cublas(cublasLtMatmulDescInit(&operation, products, CUDA_R_32F), "operation");
    set(CUBLASLT_MATMUL_DESC_TRANSA, right_.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, left_.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);  // the bias has the type of out
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data));
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value),
                 "operation attribute");
  }
};

class Preference {
 public:
  // Excludes algorithms that add parts in the type of out, which rounds twice, or in a random order. A
  // product that is split along k stores its parts in fp32 and adds them in a separate step.
  Preference(const Tensor& out, const Tensor& left, const Tensor& right) {
    check_cublas(cublasLtMatmulPreferenceInit(&preference_), "preference");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{most_workspace});
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(right));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(left));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(out));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(out));
  }
  cublasLtMatmulPreference_t get() { return &preference_; }

 private:
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference_, attribute, &value, sizeof value),
                 "preference attribute");
  }
  cublasLtMatmulPreferenceOpaque_t preference_;
};

std::string text_of(const Tensor& out, Factor left, Factor right, const Tensor& bias) {
  const auto factor = [](Factor f) { return text_of(f.tensor) + (f.transposed ? "^T" : ""); };
  return text_of(out) + " = " + factor(left) + " x " + factor(right) + (bias ? " + " + text_of(bias) : "");
}

}  // namespace

struct Gemm::Library {
  // The choice of an algorithm depends on: shapes (they determine the strides), dtypes, transposed operands,
  // bias, TF32, and alignments.
  using Key = std::array<std::int64_t, 12>;

  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms;  // nullopt: cuBLASLt has no algorithm

  Library() { check_cublas(cublasLtCreate(&handle), "cublasLtCreate"); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { cublasLtDestroy(handle); }

  // The first choice of cuBLASLt's heuristic. It is asked once for each key.
  const std::optional<cublasLtMatmulAlgo_t>& algorithm(const Tensor& out, Factor left, Factor right,
                                                       const Tensor& bias, bool tf32) {
    const std::int64_t k = left.tensor.shape[left.transposed ? 0 : 1];
    const Key key{out.shape[0],
                  out.shape[1],
                  k,
                  static_cast<int>(out.dtype),
                  static_cast<int>(left.tensor.dtype),
                  left.transposed,
                  right.transposed,
                  static_cast<bool>(bias),
                  tf32,
                  alignment_of(out),
                  alignment_of(left.tensor),
                  alignment_of(right.tensor)};
    const auto known = algorithms.find(key);
    return known != algorithms.end()
               ? known->second
               : algorithms.emplace(key, ask(out, left, right, bias, tf32)).first->second;
  }

 private:
  std::optional<cublasLtMatmulAlgo_t> ask(const Tensor& out, Factor left, Factor right, const Tensor& bias,
                                          bool tf32) {
    Product product(out, left, right, bias, tf32);
    Preference preference(out, left.tensor, right.tensor);
    std::array<cublasLtMatmulHeuristicResult_t, 4> results{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, &product.operation, &product.right, &product.left, &product.out, &product.out,
        preference.get(), static_cast<int>(results.size()), results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
    check_cublas(status, "choice of an algorithm");
    const auto usable = [](const cublasLtMatmulHeuristicResult_t& result) {
      return result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= most_workspace;
    };
    const auto first = std::find_if(results.begin(), results.begin() + count, usable);
    return first == results.begin() + count ? std::nullopt : std::optional(first->algo);
  }
};

Gemm::Gemm(Stream stream) : stream_(stream), library_(std::make_unique<Library>()) {}
Gemm::~Gemm() = default;

bool Gemm::can_add_bias(const Tensor& out, Factor left, Factor right, const Tensor& bias, bool tf32) {
  return is_aligned_bias(bias) && library_->algorithm(out, left, right, bias, tf32).has_value();
}

// The choice of an algorithm depends on the alignments, so it is not asked how much it takes.
std::size_t Gemm::workspace_bytes(const Tensor& out, Factor left) {
  return out.elements() > 0 && left.tensor.elements() > 0 ? most_workspace : 0;
}

void Gemm::multiply(const Tensor& out, Factor left, Factor right, const Tensor& bias, bool accumulate,
                    bool tf32, void* workspace) {
  if (out.elements() == 0) return;
  if (left.tensor.elements() == 0) {  // the product is an empty sum
    if (bias)
      throw std::runtime_error("Gemm: an empty product with a bias: " + text_of(out, left, right, bias));
    if (!accumulate) runtime::set_zero(out.data, out.bytes(), stream_);
    return;
  }
  const std::optional<cublasLtMatmulAlgo_t>& algorithm = library_->algorithm(out, left, right, bias, tf32);
  if (!algorithm)
    throw std::runtime_error("cuBLASLt has no algorithm for " + text_of(out, left, right, bias));
  Product product(out, left, right, bias, tf32);
  const float one = 1, beta = accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(library_->handle, &product.operation, &one, right.tensor.data, &product.right,
                     left.tensor.data, &product.left, &beta, out.data, &product.out, out.data, &product.out,
                     &*algorithm, workspace, most_workspace, stream_);
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt: ") + cublasLtGetStatusName(status) + " for " +
                             text_of(out, left, right, bias));
}

}  // namespace goat::on_cuda
