// Position embeddings: adding rows of a table to the stream, and their gradient.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"

namespace goat::GOAT_TARGET {

namespace {
// Row blockIdx.x of the stream, [N, C], is at position blockIdx.x % length of the table.
template <class T, int n>
__global__ void __launch_bounds__(most_row_threads)
    add_positions_kernel(T* stream, const float* table, std::int64_t length, std::int64_t width) {
  T* to = stream + std::int64_t{blockIdx.x} * width;
  const float* row = table + std::int64_t{blockIdx.x} % length * width;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < width; c += std::int64_t{blockDim.x} * n) {
    auto sum = Pack<T, n>::load(to + c);
    const auto position = Pack<float, n>::load(row + c);
#pragma unroll
    for (int e = 0; e < n; ++e) sum.set(e, sum[e] + position[e]);
    sum.store(to + c);
  }
}

constexpr int ahead = 4;  // sequences whose gradients a thread reads before it adds the first

// The block takes position blockIdx.x of all sequences, a thread columns of it.
template <class T, int n>
__global__ void __launch_bounds__(most_row_threads)
    sum_positions_kernel(float* dtable, const T* dstream, std::int64_t batch, std::int64_t length,
                         std::int64_t width) {
  float* to = dtable + std::int64_t{blockIdx.x} * width;
  const T* from = dstream + std::int64_t{blockIdx.x} * width;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < width; c += std::int64_t{blockDim.x} * n) {
    auto sum = Pack<float, n>::load(to + c);
    for (std::int64_t first = 0; first < batch; first += ahead) {
      Pack<T, n> parts[ahead];
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        parts[a] = Pack<T, n>::load(from + (first + a < batch ? first + a : first) * length * width + c);
#pragma unroll
      for (int a = 0; a < ahead; ++a) {
        if (first + a >= batch) break;
#pragma unroll
        for (int e = 0; e < n; ++e) sum.set(e, sum[e] + parts[a][e]);
      }
    }
    sum.store(to + c);
  }
}
}  // namespace

// A block takes a token. Memory traffic: 2 elements and 4 bytes of the table, mostly from cache, for each
// element of the stream.
void CudaDevice::launch(const AddPositions& op) {
  const std::int64_t length = op.stream.shape[1], width = op.stream.shape[2],
                     tokens = op.stream.shape[0] * length;
  if (tokens == 0 || width == 0) return;
  const float* table = data_of<float>(op.table) + op.first_position * width;
  with_element_type(op.stream.dtype, [&]<class T>(T) {
    T* stream = data_of<T>(op.stream);
    constexpr int size = Vector<T>::size;
    const bool vectors = vectorizable(stream, width) && aligned_to_16(table);
    enqueue(vectors ? add_positions_kernel<T, size> : add_positions_kernel<T, 1>, tokens,
            threads_for_row(vectors ? width / size : width), 0, stream_, stream, table, length, width);
  });
}

// Each element of dtable has one owner, which adds the sequences in their order. Memory traffic: dstream
// once, T rows of dtable twice.
void CudaDevice::launch(const AddPositionsBackward& op) {
  const std::int64_t batch = op.dstream.shape[0], length = op.dstream.shape[1], width = op.dstream.shape[2];
  if (op.dstream.elements() == 0) return;
  auto* dtable = data_of<float>(op.dtable);
  with_element_type(op.dstream.dtype, [&]<class T>(T) {
    T* dstream = data_of<T>(op.dstream);
    constexpr int size = Vector<T>::size;
    const bool vectors = vectorizable(dstream, width) && aligned_to_16(dtable);
    enqueue(vectors ? sum_positions_kernel<T, size> : sum_positions_kernel<T, 1>, length,
            threads_for_row(vectors ? width / size : width), 0, stream_, dtable, dstream, batch, length,
            width);
  });
}

}  // namespace goat::GOAT_TARGET
