// Rotary position embedding: rotates q and k in place. The pair (x_r, x_{r + d_h/2}) is rotated by the angle
// of mode r at the row's position.
#include <algorithm>

#include "kernels/cuda/attention/attention_heads.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

namespace {
constexpr int most_threads = 256;

template <class T>
__device__ __forceinline__ void rotate(T& first, T& second, float cosine, float sine) {
  const float x = to_float(first), y = to_float(second);
  first = from_float<T>(x * cosine - y * sine);
  second = from_float<T>(y * cosine + x * sine);
}

// Rotates the pairs r .. r + Vector<T>::size - 1 of a row. `turns` points to (cos, sin) of pair r.
template <class T>
__device__ __forceinline__ void rotate_vectors(T* row, int r, int half, const float* turns, float direction) {
  Vector<T> first = Vector<T>::load(row + r), second = Vector<T>::load(row + half + r);
#pragma unroll
  for (int i = 0; i < Vector<T>::size; i += 2) {
    const Vector<float> turn = Vector<float>::load(turns + 2 * i);
    rotate(first.element[i], second.element[i], turn[0], direction * turn[1]);
    rotate(first.element[i + 1], second.element[i + 1], turn[2], direction * turn[3]);
  }
  first.store(row + r);
  second.store(row + half + r);
}

// Block (t, b) owns row t of the sequences b, b + gridDim.y, ...: first its heads of q, then those of k. A
// thread rotates one pair or one vector of pairs.
template <class T, bool vectors>
__global__ void __launch_bounds__(most_threads)
    rope_kernel(Heads<T> q, Heads<T> k, const float* __restrict__ table, int batch, int query_heads,
                int key_heads, int half, float direction) {
  constexpr int width = vectors ? Vector<T>::size : 1;
  const std::int64_t t = blockIdx.x;
  const int groups = half / width, query_items = query_heads * groups,
            items = query_items + key_heads * groups;
  for (int b = static_cast<int>(blockIdx.y); b < batch; b += static_cast<int>(gridDim.y))
    for (int item = static_cast<int>(threadIdx.x); item < items; item += static_cast<int>(blockDim.x)) {
      const bool is_query = item < query_items;
      const int within = is_query ? item : item - query_items, h = within / groups,
                r = within % groups * width;
      T* row = is_query ? q.rows(b, h) + t * q.row_stride : k.rows(b, h) + t * k.row_stride;
      const float* turns = table + (t * half + r) * 2;
      if constexpr (vectors)
        rotate_vectors(row, r, half, turns, direction);
      else
        rotate(row[r], row[half + r], turns[0], direction * turns[1]);
    }
}
}  // namespace

// Reads and writes q and k once: 2 (H + H_k) d_h elements a token. All heads of a row read the row of the
// table (4 d_h bytes) from cache.
void CudaDevice::launch(const Rope& op) {
  const Tensor& x = op.q ? op.q : op.k;
  const int batch = static_cast<int>(x.shape[0]), rows = static_cast<int>(x.shape[1]),
            query_heads = op.q ? static_cast<int>(op.q.shape[2]) : 0,
            key_heads = op.k ? static_cast<int>(op.k.shape[2]) : 0;
  const int half = static_cast<int>(x.shape[3] / 2);
  if (batch == 0 || rows == 0 || query_heads + key_heads == 0 || half == 0) return;
  const float* table = data_of<float>(op.fourier) + op.first_position * half * 2;
  with_element_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    const Heads<T> q(op.q), k(op.k);
    const bool vectors =
        half % Vector<T>::size == 0 && q.aligned() && k.aligned() && vectorizable(table, 2 * half);
    const std::int64_t items =
        std::int64_t{query_heads + key_heads} * (half / (vectors ? Vector<T>::size : 1));
    const Grid grid(rows, std::min<std::int64_t>(batch, Grid::most_yz()));
    const dim3 block(static_cast<unsigned>(std::min<std::int64_t>(divide_up(items, 32) * 32, most_threads)));
    enqueue(vectors ? rope_kernel<T, true> : rope_kernel<T, false>, grid, block, 0, stream_, q, k, table,
            batch, query_heads, key_heads, half, op.backward ? -1.0f : 1.0f);
  });
}

}  // namespace goat::GOAT_TARGET
