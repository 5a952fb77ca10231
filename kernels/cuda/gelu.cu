// GELU, tanh form, by the logistic function: 1/2 (1 + tanh u) = 1 / (1 + e^(-2u)). This form keeps the
// relative accuracy in the left tail.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"

namespace goat::GOAT_TARGET {

namespace {
constexpr float slope = 1.5957691216057308f;  // d(2u)/dx at 0: 2 sqrt(2/pi)
constexpr float cubic = 0.044715f;

struct Gate {
  float open;  // 1 / (1 + e^(-2u))
  float rate;  // d open / dx
  // The argument, limited to [-20, 20]. Beyond, the gate is 0 or 1, and powers of x could give inf * 0.
  float x;
};

__device__ __forceinline__ Gate gate_at(float value) {
  const float x = value < -20.0f ? -20.0f : (value > 20.0f ? 20.0f : value);  // keeps NaN
  const float square = x * x;
  const float twice_u = slope * x * (1.0f + cubic * square);
  const float e = __expf(-fabsf(twice_u));  // at most 1
  const float scale = __fdividef(1.0f, 1.0f + e);
  return {twice_u < 0 ? e * scale : scale, e * scale * scale * slope * (1.0f + 3.0f * cubic * square), x};
}

template <class T>
struct Gelu {
  static constexpr int step = Vector<T>::size;
  T* out;
  const T* x;
  template <int n>
  __device__ __forceinline__ void apply(std::int64_t at) const {
    auto values = Pack<T, n>::load(x + at);
#pragma unroll
    for (int i = 0; i < n; ++i) values.set(i, values[i] * gate_at(values[i]).open);
    values.store(out + at);
  }
};

// d(x open)/dx = open + x d open/dx
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
    for (int i = 0; i < n; ++i) {
      const Gate gate = gate_at(values[i]);
      gradient.set(i, gradient[i] * (gate.open + gate.x * gate.rate));
    }
    gradient.store(dx + at);
  }
};
}  // namespace

// A thread takes 16 bytes of x. Memory traffic: 2 elements for each element of x.
void CudaDevice::launch(const GeluForward& op) {
  with_element_type(op.x.dtype, [&]<class T>(T) {
    const Gelu<T> gelu{data_of<T>(op.out), data_of<T>(op.x)};
    enqueue_elementwise(stream_, gelu, op.x.elements(), aligned_to_16(gelu.out, gelu.x));
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
