// SwiGLU: out = silu(gate) up, with silu(x) = x s(x) and s(x) = 1 / (1 + e^-x).
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"

namespace goat::GOAT_TARGET {

namespace {
// s(x). For x < 0 the form e^x / (1 + e^x) keeps the relative accuracy in the left tail.
__device__ __forceinline__ float logistic(float x) {
  const float e = __expf(-fabsf(x));  // at most 1
  const float scale = __fdividef(1.0f, 1.0f + e);
  return x < 0 ? e * scale : scale;
}

// A [N, F] view whose rows are `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  explicit Rows(const Tensor& tensor) : data(data_of<T>(tensor)), stride(tensor.stride[0]) {}
  __device__ __forceinline__ T* at(std::int64_t row, std::int64_t column) const {
    return data + row * stride + column;
  }
  bool in_vectors(std::int64_t width) const {
    return vectorizable(data, width) && stride % Vector<T>::size == 0;
  }
};

template <class T, int n>
__global__ void __launch_bounds__(most_row_threads)
    swiglu_kernel(Rows<T> out, Rows<T> gate, Rows<T> up, std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < width; c += std::int64_t{blockDim.x} * n) {
    const auto g = Pack<T, n>::load(gate.at(row, c)), u = Pack<T, n>::load(up.at(row, c));
    Pack<T, n> product;
#pragma unroll
    for (int i = 0; i < n; ++i) product.set(i, g[i] * logistic(g[i]) * u[i]);
    product.store(out.at(row, c));
  }
}

// dgate = dout up s(gate) (1 + gate (1 - s(gate))),  dup = dout silu(gate). 1 - s(x) is computed as s(-x),
// which is accurate where s(x) is near 1.
template <class T, int n>
__global__ void __launch_bounds__(most_row_threads)
    swiglu_gradient_kernel(Rows<T> dgate, Rows<T> dup, Rows<T> dout, Rows<T> gate, Rows<T> up,
                           std::int64_t width) {
  const std::int64_t row = blockIdx.x;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < width; c += std::int64_t{blockDim.x} * n) {
    const auto g = Pack<T, n>::load(gate.at(row, c)), u = Pack<T, n>::load(up.at(row, c)),
               d = Pack<T, n>::load(dout.at(row, c));
    Pack<T, n> to_gate, to_up;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float s = logistic(g[i]);
      to_gate.set(i, d[i] * u[i] * s * (1.0f + g[i] * logistic(-g[i])));
      to_up.set(i, d[i] * g[i] * s);
    }
    to_gate.store(dgate.at(row, c));
    to_up.store(dup.at(row, c));
  }
}
}  // namespace

// A block takes a row; a thread takes 16 bytes of each operand at a time. Memory traffic: 3 elements for
// each element of out.
void CudaDevice::launch(const SwigluForward& op) {
  const std::int64_t rows = op.out.shape[0], width = op.out.shape[1];
  if (rows == 0 || width == 0) return;
  with_element_type(op.out.dtype, [&]<class T>(T) {
    const Rows<T> out(op.out), gate(op.gate), up(op.up);
    const bool vectors = out.in_vectors(width) && gate.in_vectors(width) && up.in_vectors(width);
    constexpr int size = Vector<T>::size;
    enqueue(vectors ? swiglu_kernel<T, size> : swiglu_kernel<T, 1>, rows,
            threads_for_row(vectors ? width / size : width), 0, stream_, out, gate, up, width);
  });
}

// Distributed as the forward kernel. Memory traffic: 5 elements for each element of dout. A thread reads an
// element of gate and up before it writes there, so dgate may be gate, and dup may be up.
void CudaDevice::launch(const SwigluBackward& op) {
  const std::int64_t rows = op.dout.shape[0], width = op.dout.shape[1];
  if (rows == 0 || width == 0) return;
  with_element_type(op.dout.dtype, [&]<class T>(T) {
    const Rows<T> dgate(op.dgate), dup(op.dup), dout(op.dout), gate(op.gate), up(op.up);
    const bool vectors = dgate.in_vectors(width) && dup.in_vectors(width) && dout.in_vectors(width) &&
                         gate.in_vectors(width) && up.in_vectors(width);
    constexpr int size = Vector<T>::size;
    enqueue(vectors ? swiglu_gradient_kernel<T, size> : swiglu_gradient_kernel<T, 1>, rows,
            threads_for_row(vectors ? width / size : width), 0, stream_, dgate, dup, dout, gate, up, width);
  });
}

}  // namespace goat::GOAT_TARGET
