// GELU of a tensor, forward and backward.
#include "kernels/cuda/gelu.cuh"

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"

namespace goat::GOAT_TARGET {

namespace {
template <class T>
struct Gelu {
  static constexpr int step = Vector<T>::size;
  T* out;
  const T* x;
  template <int n>
  __device__ __forceinline__ void apply(std::int64_t at) const {
    auto values = Pack<T, n>::load(x + at);
#pragma unroll
    for (int i = 0; i < n; ++i) values.set(i, gelu(values[i]));
    values.store(out + at);
  }
};

template <class T>
struct GeluGradient {
  static constexpr int step = Vector<T>::size;
  T* dx;
  const T* dout;
  const T* x;
  template <int n>
  __device__ __forceinline__ void apply(std::int64_t at) const {
    const auto values = Pack<T, n>::load(x + at);
    auto gradient = Pack<T, n>::load(dout + at);
#pragma unroll
    for (int i = 0; i < n; ++i) gradient.set(i, gradient[i] * gelu_derivative(values[i]));
    gradient.store(dx + at);
  }
};
}  // namespace

// A thread takes 16 bytes of x. Memory traffic: 2 elements for each element of x.
void CudaDevice::launch(const GeluForward& op) {
  with_element_type(op.x.dtype, [&]<class T>(T) {
    const Gelu<T> activation{data_of<T>(op.out), data_of<T>(op.x)};
    enqueue_elementwise(stream_, activation, op.x.elements(), aligned_to_16(activation.out, activation.x));
  });
}

// A thread takes 16 bytes of x and of dout. Memory traffic: 3 elements for each element of x. dx may be dout.
void CudaDevice::launch(const GeluBackward& op) {
  with_element_type(op.x.dtype, [&]<class T>(T) {
    const GeluGradient<T> gradient{data_of<T>(op.dx), data_of<T>(op.dout), data_of<T>(op.x)};
    enqueue_elementwise(stream_, gradient, op.x.elements(),
                        aligned_to_16(gradient.dx, gradient.dout, gradient.x));
  });
}

}  // namespace goat::GOAT_TARGET
