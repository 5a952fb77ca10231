// Linear layers: Gemm computes the matrix products, kernels of this file the column sums.
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"

namespace goat::GOAT_TARGET {

namespace {

constexpr int warps = 8;          // warps of a block; each takes every eighth row
constexpr int slice_rows = 256;   // rows that a block sums; a thread sums 32 of them in fp32
constexpr int finish_warps = 32;  // warps of a block that adds the slices
constexpr int spread_threads = 256;

// partial[slice, c] = sum of matrix[row, c] over the slice's rows. A lane owns `width` columns: 16
// bytes, or one column where rows are not 16-byte aligned. Block tile * slices + slice takes one slice
// of one tile of columns.
template <int width, class T>
__global__ void __launch_bounds__(32 * warps)
    column_sums_kernel(double* partial, const T* matrix, std::int64_t rows, std::int64_t columns,
                       unsigned slices) {
  GOAT_SHARED(warp_sums, float[warps][32 * width]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned slice = blockIdx.x % slices;
  const std::int64_t tile = static_cast<std::int64_t>(blockIdx.x / slices) * 32 * width,
                     column = tile + lane * width;
  const std::int64_t first = static_cast<std::int64_t>(slice) * slice_rows,
                     last = first + slice_rows < rows ? first + slice_rows : rows;
  float sums[width] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = first + warp; row < last; row += warps) {
      const auto pack = Pack<T, width>::load(matrix + row * columns + column);
#pragma unroll
      for (int e = 0; e < width; ++e) sums[e] += pack[e];
    }
  }
#pragma unroll
  for (int e = 0; e < width; ++e) warp_sums[warp][lane * width + e] = sums[e];
  __syncthreads();
  for (int c = threadIdx.x; c < 32 * width && tile + c < columns; c += 32 * warps) {
    double total = 0;
    for (int w = 0; w < warps; ++w) total += warp_sums[w][c];
    partial[slice * columns + tile + c] = total;
  }
}

// sums[c] += the column sums of partial [slices, columns]. A block owns 32 columns.
__global__ void __launch_bounds__(32 * finish_warps)
    add_slices_kernel(float* sums, const double* partial, std::int64_t slices, std::int64_t columns) {
  GOAT_SHARED(warp_sums, double[finish_warps][32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  double total = 0;
  if (column < columns)
    for (std::int64_t slice = warp; slice < slices; slice += finish_warps)
      total += partial[slice * columns + column];
  warp_sums[warp][lane] = total;
  __syncthreads();
  if (warp == 0 && column < columns) {
    for (int w = 1; w < finish_warps; ++w) total += warp_sums[w][lane];
    sums[column] = static_cast<float>(sums[column] + total);
  }
}

// out[n, :] = bias
template <class T>
__global__ void __launch_bounds__(spread_threads)
    spread_rows_kernel(T* out, const T* bias, std::int64_t elements, std::int64_t columns) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * spread_threads + threadIdx.x; i < elements;
       i += static_cast<std::int64_t>(gridDim.x) * spread_threads)
    out[i] = bias[i % columns];
}

Product product_of(const LinearForward& op) {
  return {.out = op.out,
          .left = {op.x, false},
          .right = {op.weight, true},
          .bias = op.bias,
          .factors = op.factors};
}

Product product_of(const LinearBackwardInput& op) {
  return {.out = op.dx, .left = {op.dout, false}, .right = {op.weight, false}, .factors = op.factors};
}

Product product_of(const LinearBackwardWeight& op) {
  return {.out = op.dweight,
          .left = {op.dout, true},
          .right = {op.x, false},
          .accumulate = true,
          .factors = op.factors};
}

Product product_of(const LinearGeluForward& op) {
  return {.out = op.out,
          .left = {op.x, false},
          .right = {op.weight, true},
          .bias = op.bias,
          .factors = op.factors,
          .finish = Finish::gelu,
          .aux = op.projected};
}

Product product_of(const LinearGeluBackwardInput& op) {
  return {.out = op.dprojected,
          .left = {op.dout, false},
          .right = {op.weight, false},
          .factors = op.factors,
          .finish = Finish::gelu_gradient,
          .aux = op.projected};
}
}  // namespace

std::size_t CudaDevice::workspace(const LinearForward& op) const {
  return Gemm::workspace_bytes(product_of(op));
}

// Gemm cannot add some biases, for example one that is not aligned. Then every row of `out` is first set
// to the bias, and Gemm adds the product. This costs one more write and read of `out`; the result is
// still rounded once.
void CudaDevice::launch(const LinearForward& op) {
  void* const workspace = workspace_.take(op);
  const std::int64_t elements = op.out.elements();
  Product product = product_of(op);
  if (op.bias && elements > 0 && !gemm_->supports(product)) {
    const std::int64_t blocks =
        std::min<std::int64_t>(divide_up(elements, spread_threads), 8 * multiprocessors_);
    with_element_type(op.out.dtype, [&](auto type) {
      using T = decltype(type);
      enqueue(spread_rows_kernel<T>, blocks, spread_threads, 0, stream_, data_of<T>(op.out),
              data_of<T>(op.bias), elements, op.out.shape[1]);
    });
    product.bias = {};
    product.accumulate = true;
  }
  gemm_->multiply(product, workspace);
}

std::size_t CudaDevice::workspace(const LinearBackwardInput& op) const {
  return Gemm::workspace_bytes(product_of(op));
}

void CudaDevice::launch(const LinearBackwardInput& op) {
  gemm_->multiply(product_of(op), workspace_.take(op));
}

// The matrix product and then the slices of dbias, f64 [slices, O], use the same memory. dbias may be
// planned, so its rank tells whether it is wanted.
std::size_t CudaDevice::workspace(const LinearBackwardWeight& op) const {
  const std::int64_t slices = divide_up(op.dout.shape[0], slice_rows);
  const std::size_t slice_bytes =
      op.dbias.rank > 0 ? static_cast<std::size_t>(slices * op.dout.shape[1]) * sizeof(double) : 0;
  return std::max(Gemm::workspace_bytes(product_of(op)), slice_bytes);
}

// dbias takes two steps. First a block sums a slice of 256 rows of a tile of columns; a warp reads 512
// consecutive bytes of a row. Then a block adds the slices of 32 columns. Memory traffic: dout once, and 16
// bytes for each column and slice.
//
// cuBLASLt's epilogues can sum the columns beside a product, but only store the sums, in the type of the
// product's output. DGELU_BGRAD would round them to bf16. BGRADB of this product would give f32, to be kept
// elsewhere until a second kernel adds it to the dbias of earlier micro-batches.
void CudaDevice::launch(const LinearBackwardWeight& op) {
  void* const workspace = workspace_.take(op);
  gemm_->multiply(product_of(op), workspace);
  const std::int64_t rows = op.dout.shape[0], columns = op.dout.shape[1];
  if (!op.dbias || rows == 0) return;
  const std::int64_t slices = divide_up(rows, slice_rows);
  auto* partial = static_cast<double*>(workspace);
  with_element_type(op.dout.dtype, [&](auto type) {
    using T = decltype(type);
    const T* dout = data_of<T>(op.dout);
    const bool vectors = vectorizable(dout, columns);
    const int width = vectors ? Vector<T>::size : 1;
    enqueue(vectors ? column_sums_kernel<Vector<T>::size, T> : column_sums_kernel<1, T>,
            slices * divide_up(columns, 32 * width), 32 * warps, 0, stream_, partial, dout, rows, columns,
            static_cast<unsigned>(slices));
  });
  enqueue(add_slices_kernel, divide_up(columns, 32), 32 * finish_warps, 0, stream_, data_of<float>(op.dbias),
          partial, slices, columns);
}

std::size_t CudaDevice::workspace(const LinearGeluForward& op) const {
  return Gemm::workspace_bytes(product_of(op));
}

// By the library: writes out and projected. Otherwise projected is also read again.
void CudaDevice::launch(const LinearGeluForward& op) {
  void* const workspace = workspace_.take(op);
  if (op.out.elements() == 0) return;
  const Product product = product_of(op);
  if (op.epilogue == Epilogue::library && gemm_->supports(product))
    return gemm_->multiply(product, workspace);
  launch(LinearForward{
      .out = op.projected, .x = op.x, .weight = op.weight, .bias = op.bias, .factors = op.factors});
  CudaDevice::launch(GeluForward{.out = op.out, .x = op.projected});
}

std::size_t CudaDevice::workspace(const LinearGeluBackwardInput& op) const {
  return Gemm::workspace_bytes(product_of(op));
}

// By the library: reads projected and writes dprojected. Otherwise dprojected is also read and written again.
void CudaDevice::launch(const LinearGeluBackwardInput& op) {
  void* const workspace = workspace_.take(op);
  if (op.dprojected.elements() == 0) return;
  const Product product = product_of(op);
  if (op.epilogue == Epilogue::library && gemm_->supports(product))
    return gemm_->multiply(product, workspace);
  CudaDevice::launch(
      LinearBackwardInput{.dx = op.dprojected, .dout = op.dout, .weight = op.weight, .factors = op.factors});
  CudaDevice::launch(GeluBackward{.dx = op.dprojected, .dout = op.dprojected, .x = op.projected});
}

}  // namespace goat::GOAT_TARGET
