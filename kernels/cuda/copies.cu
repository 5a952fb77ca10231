// Fill and Cast.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"

namespace goat::GOAT_TARGET {

namespace {
template <class T>
struct Filler {
  static constexpr int step = Vector<T>::size;
  T* out;
  float value;
  template <int n>
  __device__ __forceinline__ void apply(std::int64_t at) const {
    Pack<T, n> values;
#pragma unroll
    for (int i = 0; i < n; ++i) values.set(i, value);
    values.store(out + at);
  }
};

// A step is 8 elements: one vector of bf16 or two of float.
template <class To, class From>
struct Caster {
  static constexpr int step = Vector<bf16>::size;
  To* out;
  const From* x;
  template <int n>
  __device__ __forceinline__ void apply(std::int64_t at) const {
    const auto values = Pack<From, n>::load(x + at);
    Pack<To, n> rounded;
#pragma unroll
    for (int i = 0; i < n; ++i) rounded.set(i, values[i]);
    rounded.store(out + at);
  }
};
}  // namespace

// A thread writes 16 bytes at a time.
void CudaDevice::launch(const Fill& op) {
  with_element_type(op.out.dtype, [&]<class T>(T) {
    const Filler<T> filler{data_of<T>(op.out), op.value};
    enqueue_elementwise(stream_, filler, op.out.elements(), aligned_to_16(filler.out));
  });
}

// A thread takes 8 elements. Memory traffic for each element: 8 bytes from f32 to f32, 6 between f32 and
// bf16, 4 from bf16 to bf16.
void CudaDevice::launch(const Cast& op) {
  with_element_type(op.out.dtype, [&]<class To>(To) {
    with_element_type(op.x.dtype, [&]<class From>(From) {
      const Caster<To, From> caster{data_of<To>(op.out), data_of<From>(op.x)};
      enqueue_elementwise(stream_, caster, op.out.elements(), aligned_to_16(caster.out, caster.x));
    });
  });
}

}  // namespace goat::GOAT_TARGET
