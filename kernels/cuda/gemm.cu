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

// Throws the error. A GPU that is lost is told by the runtime; cuBLASLt only says that it failed.
[[noreturn]] void throw_cublas_error(cublasStatus_t status, const std::string& what) {
  runtime::free_memory();
  throw std::runtime_error("cuBLASLt: " + what + ": " + cublasLtGetStatusName(status));
}

void check_cublas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw_cublas_error(status, what);
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

cublasLtEpilogue_t epilogue_of(const Product& product) {
  if (product.finish == Finish::gelu_gradient) return CUBLASLT_EPILOGUE_DGELU;
  if (product.finish == Finish::gelu)
    return product.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return product.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

cublasComputeType_t arithmetic_of(const Product& product) {
  if (product.left.tensor.dtype != DType::f32) return CUBLAS_COMPUTE_32F;
  switch (product.factors) {
    case Factors::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Factors::bf16: return CUBLAS_COMPUTE_32F_FAST_16BF;
    case Factors::as_stored: break;
  }
  return CUBLAS_COMPUTE_32F;
}

// A product as cuBLASLt describes it. The opaque structures hold no resources.
struct Description {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t out, left, right;

  explicit Description(const Product& product)
      : out(layout_of(product.out)),
        left(layout_of(product.left.tensor)),
        right(layout_of(product.right.tensor)) {
    check_cublas(cublasLtMatmulDescInit(&operation, arithmetic_of(product), CUDA_R_32F), "operation");
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(product));
    // The bias and aux have the type of out. The choice of an algorithm looks at their addresses.
    if (product.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(product.bias.data));
    if (product.finish == Finish::none) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux.data);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.aux.shape[1]);
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
  explicit Preference(const Product& product) {
    check_cublas(cublasLtMatmulPreferenceInit(&preference_), "preference");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{most_workspace});
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product.right.tensor));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product.left.tensor));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(product.out));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product.out));
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

}  // namespace

struct Gemm::Library {
  // The choice of an algorithm depends on: shapes (they determine the strides), dtypes, transposed operands,
  // TF32, epilogue, and alignments (0: no such operand).
  using Key = std::array<std::int64_t, 14>;

  cublasLtHandle_t handle = nullptr;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms;  // nullopt: cuBLASLt has no algorithm

  Library() { check_cublas(cublasLtCreate(&handle), "cublasLtCreate"); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { cublasLtDestroy(handle); }

  // The first choice of cuBLASLt's heuristic. It is asked once for each key.
  const std::optional<cublasLtMatmulAlgo_t>& algorithm(const Product& product) {
    const auto& [out, left, right, bias, accumulate, factors, finish, aux] = product;
    const Key key{out.shape[0],
                  out.shape[1],
                  left.tensor.shape[left.transposed ? 0 : 1],
                  static_cast<int>(out.dtype),
                  static_cast<int>(left.tensor.dtype),
                  left.transposed,
                  right.transposed,
                  static_cast<int>(factors),
                  epilogue_of(product),
                  alignment_of(out),
                  alignment_of(left.tensor),
                  alignment_of(right.tensor),
                  bias ? alignment_of(bias) : 0,
                  finish != Finish::none ? alignment_of(aux) : 0};
    const auto known = algorithms.find(key);
    return known != algorithms.end() ? known->second : algorithms.emplace(key, ask(product)).first->second;
  }

 private:
  std::optional<cublasLtMatmulAlgo_t> ask(const Product& product) {
    Description description(product);
    Preference preference(product);
    std::array<cublasLtMatmulHeuristicResult_t, 4> results{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, &description.operation, &description.right, &description.left, &description.out,
        &description.out, preference.get(), static_cast<int>(results.size()), results.data(), &count);
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

bool Gemm::supports(const Product& product) {
  return fits_epilogue(product) && library_->algorithm(product).has_value();
}

// The choice of an algorithm depends on the alignments, so it is not asked how much it takes.
std::size_t Gemm::workspace_bytes(const Product& product) {
  return product.out.elements() > 0 && product.left.tensor.elements() > 0 ? most_workspace : 0;
}

void Gemm::multiply(const Product& product, void* workspace) {
  const Tensor &out = product.out, &left = product.left.tensor, &right = product.right.tensor;
  if (out.elements() == 0) return;
  if (left.elements() == 0) {  // the product is an empty sum
    if (product.bias || product.finish != Finish::none)
      throw std::runtime_error("Gemm: an empty product with an epilogue: " + text_of(product));
    if (!product.accumulate) runtime::set_zero(out.data, out.bytes(), stream_);
    return;
  }
  const std::optional<cublasLtMatmulAlgo_t>& algorithm = library_->algorithm(product);
  if (!algorithm) throw std::runtime_error("cuBLASLt has no algorithm for " + text_of(product));
  Description description(product);
  const float one = 1, beta = product.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(library_->handle, &description.operation, &one, right.data, &description.right,
                     left.data, &description.left, &beta, out.data, &description.out, out.data,
                     &description.out, &*algorithm, workspace, most_workspace, stream_);
  if (status != CUBLAS_STATUS_SUCCESS) throw_cublas_error(status, text_of(product));
}

}  // namespace goat::on_cuda
