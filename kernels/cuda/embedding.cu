// Token embedding: forward gathers rows, backward adds rows up.
#include <bit>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/elementwise.cuh"

namespace goat::GOAT_TARGET {

namespace {
template <class T, int n>
__global__ void __launch_bounds__(most_row_threads)
    embedding_kernel(T* out, const std::int32_t* tokens, const T* table, std::int64_t width) {
  T* to = out + std::int64_t{blockIdx.x} * width;
  const T* from = table + std::int64_t{tokens[blockIdx.x]} * width;
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < width; c += std::int64_t{blockDim.x} * n)
    Pack<T, n>::load(from + c).store(to + c);
}

// --------------------------------------------------------- the positions sorted by token (stable radix sort)
constexpr int tile = 512;  // keys that a block sorts, one a thread
constexpr int digit_bits = 8;
constexpr int digits = 1 << digit_bits;
constexpr int no_digit = digits;  // the digit of a thread beyond the last key

// The digit of the key at `place`. `order` lists positions of `keys`; nullptr stands for 0, 1, 2, ...
__device__ __forceinline__ int digit_of(const std::int32_t* keys, const std::int32_t* order,
                                        std::int64_t place, std::int64_t count, int shift) {
  if (place >= count) return no_digit;
  const std::int32_t key = keys[order ? order[place] : place];
  return static_cast<int>((static_cast<std::uint32_t>(key) >> shift) & (digits - 1));
}

// counts[block, d] = the number of the tile's keys with digit d.
__global__ void __launch_bounds__(tile)
    count_digits_kernel(std::int32_t* counts, const std::int32_t* keys, const std::int32_t* order,
                        std::int64_t count, int shift) {
  GOAT_SHARED(found, int[digits + 1]);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread <= digits) found[thread] = 0;
  __syncthreads();
  atomicAdd(&found[digit_of(keys, order, std::int64_t{blockIdx.x} * tile + thread, count, shift)], 1);
  __syncthreads();
  if (thread < digits) counts[std::int64_t{blockIdx.x} * digits + thread] = found[thread];
}

// Moves the tile's keys to their places in the order of this digit. A key goes after all keys with a smaller
// digit, and after the earlier keys with the same digit.
__global__ void __launch_bounds__(tile)
    place_kernel(std::int32_t* sorted, const std::int32_t* counts, const std::int32_t* keys,
                 const std::int32_t* order, std::int64_t count, int shift) {
  GOAT_SHARED(tile_digits, int[tile]);
  GOAT_SHARED(totals, int[digits]);  // number of keys with a digit, in all tiles
  GOAT_SHARED(places, int[digits]);  // place of the tile's first key with a digit
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t place = std::int64_t{blockIdx.x} * tile + thread;
  const int digit = digit_of(keys, order, place, count, shift);
  tile_digits[thread] = digit;
  int before = 0;
  if (thread < digits) {
    int total = 0;
    for (unsigned block = 0; block < gridDim.x; ++block) {
      const int found = counts[std::int64_t{block} * digits + thread];
      if (block < blockIdx.x) before += found;
      total += found;
    }
    totals[thread] = total;
  }
  __syncthreads();
  if (thread < digits) {
    for (int smaller = 0; smaller < thread; ++smaller) before += totals[smaller];
    places[thread] = before;
  }
  __syncthreads();
  if (digit == no_digit) return;
  int rank = 0;
  for (int earlier = 0; earlier < thread; ++earlier) rank += tile_digits[earlier] == digit;
  sorted[places[digit] + rank] = order ? order[place] : static_cast<std::int32_t>(place);
}

// ------------------------------------------------------------------------------ sums over runs of one token
constexpr int chunk = 32;  // rows that a block adds up
constexpr int ahead = 4;   // rows that a thread reads before it adds the first

// A run is a range of consecutive places of the sorted list with the same token. The block takes `chunk`
// places and sums its part of each run in fp32. It adds a run that lies inside the chunk to dtable. It stores
// the part of a run that began in an earlier chunk in partials[2 chunk], and the part of a run that begins
// here and ends later in partials[2 chunk + 1].
template <class T, int n>
__global__ void __launch_bounds__(most_row_threads)
    add_runs_kernel(float* dtable, float* partials, const T* dout, const std::int32_t* tokens,
                    const std::int32_t* sorted, std::int64_t count, std::int64_t width) {
  GOAT_SHARED(rows, std::int32_t[chunk]);
  // The tokens of the chunk's places, of the place before and of the place after; -1: no token.
  GOAT_SHARED(run_token, std::int32_t[chunk + 2]);
  const std::int64_t first = std::int64_t{blockIdx.x} * chunk;
  const int size = static_cast<int>(count - first < chunk ? count - first : chunk);
  for (int i = static_cast<int>(threadIdx.x); i < chunk + 2; i += static_cast<int>(blockDim.x)) {
    const std::int64_t place = first + i - 1;
    const std::int32_t row = place >= 0 && place < count ? sorted[place] : -1;
    run_token[i] = row >= 0 ? tokens[row] : -1;
    if (i >= 1 && i <= chunk) rows[i - 1] = row;
  }
  __syncthreads();
  for (std::int64_t c = std::int64_t{threadIdx.x} * n; c < width; c += std::int64_t{blockDim.x} * n) {
    float sum[n] = {};
    bool began_before = run_token[0] == run_token[1];
    for (int start = 0; start < size; start += ahead) {
      Pack<T, n> parts[ahead];
#pragma unroll
      for (int a = 0; a < ahead; ++a)
        parts[a] = Pack<T, n>::load(dout + rows[start + a < size ? start + a : start] * width + c);
#pragma unroll
      for (int a = 0; a < ahead; ++a) {
        const int i = start + a;
        if (i >= size) break;
#pragma unroll
        for (int e = 0; e < n; ++e) sum[e] += parts[a][e];
        const bool ends = run_token[i + 2] != run_token[i + 1];
        if (!ends && i + 1 < size) continue;
        if (ends && !began_before) {
          float* to = dtable + run_token[i + 1] * width + c;
          auto total = Pack<float, n>::load(to);
#pragma unroll
          for (int e = 0; e < n; ++e) total.set(e, total[e] + sum[e]);
          total.store(to);
        } else {
          float* to = partials + (2 * std::int64_t{blockIdx.x} + (began_before ? 0 : 1)) * width + c;
#pragma unroll
          for (int e = 0; e < n; ++e) to[e] = sum[e];
        }
#pragma unroll
        for (int e = 0; e < n; ++e) sum[e] = 0;
        began_before = false;
      }
    }
  }
}

// dtable += the parts of a run that crosses chunks, added in their order and in double. The block takes the
// run that begins in its chunk and does not end there, if there is one. A thread takes columns.
__global__ void __launch_bounds__(most_row_threads)
    add_partials_kernel(float* dtable, const float* partials, const std::int32_t* tokens,
                        const std::int32_t* sorted, std::int64_t count, std::int64_t width) {
  const std::int64_t here = blockIdx.x;
  const auto token_at = [&](std::int64_t place) {
    return place >= 0 && place < count ? tokens[sorted[place]] : -1;
  };
  const std::int32_t token = token_at((here + 1) * chunk - 1);
  if (token < 0 || token_at((here + 1) * chunk) != token) return;                      // no run crosses
  if (token_at(here * chunk) == token && token_at(here * chunk - 1) == token) return;  // the run began before
  std::int64_t last = here + 1, limit = gridDim.x;  // `last`: the last chunk that begins with the token
  while (limit - last > 1) {
    const std::int64_t middle = (last + limit) / 2;
    (token_at(middle * chunk) == token ? last : limit) = middle;
  }
  for (std::int64_t c = threadIdx.x; c < width; c += blockDim.x) {
    double sum = static_cast<double>(partials[(2 * here + 1) * width + c]);
    for (std::int64_t i = here + 1; i <= last; ++i) sum += static_cast<double>(partials[2 * i * width + c]);
    float* to = dtable + token * width + c;
    *to = static_cast<float>(static_cast<double>(*to) + sum);
  }
}
}  // namespace

// A block takes a token. Memory traffic: 2 elements for each element of out.
void CudaDevice::launch(const EmbeddingForward& op) {
  const std::int64_t count = op.tokens.elements(), width = op.table.shape[1];
  if (count == 0 || width == 0) return;
  with_element_type(op.table.dtype, [&]<class T>(T) {
    T *out = data_of<T>(op.out), *table = data_of<T>(op.table);
    constexpr int size = Vector<T>::size;
    const bool vectors = vectorizable(out, width) && aligned_to_16(table);
    enqueue(vectors ? embedding_kernel<T, size> : embedding_kernel<T, 1>, count,
            threads_for_row(vectors ? width / size : width), 0, stream_, out,
            data_of<std::int32_t>(op.tokens), table, width);
  });
}

namespace {
struct EmbeddingBackwardMemory {
  float* partials;         // [2 chunks, C]
  std::int32_t* sorted;    // [N]
  std::int32_t* unsorted;  // [N], the order before a pass of the sort
  std::int32_t* counts;    // [tiles, digits]
  std::size_t bytes;

  explicit EmbeddingBackwardMemory(const EmbeddingBackward& op, void* workspace = nullptr) {
    const std::int64_t count = op.tokens.elements();
    WorkspaceArrays arrays(workspace);
    partials = arrays.next<float>(2 * divide_up(count, chunk) * op.dtable.shape[1]);
    sorted = arrays.next<std::int32_t>(count);
    unsorted = arrays.next<std::int32_t>(count);
    counts = arrays.next<std::int32_t>(divide_up(count, tile) * digits);
    bytes = arrays.bytes();
  }
};
}  // namespace

std::size_t CudaDevice::workspace(const EmbeddingBackward& op) const {
  return EmbeddingBackwardMemory(op).bytes;
}

// The positions are sorted by token. Then the rows of one token are neighbours, in the order of n. The rows
// are summed in chunks of the sorted list, so many blocks share the work for a frequent token. The result
// does not depend on the order in which blocks run. Memory traffic: each row of dout once, each row of dtable
// that occurs twice. The sort has ceil(log2(V_p) / 8) passes of two kernels. A pass moves 16 bytes a token,
// and 1 KiB for each pair of tiles of 512 tokens.
void CudaDevice::launch(const EmbeddingBackward& op) {
  EmbeddingBackwardMemory memory(op, workspace_.take(op));
  const std::int64_t count = op.tokens.elements(), width = op.dtable.shape[1];
  if (count == 0 || width == 0) return;
  const std::int64_t tiles = divide_up(count, tile), chunks = divide_up(count, chunk);
  const auto* tokens = data_of<std::int32_t>(op.tokens);
  const int bits =
      std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(op.dtable.shape[0] - 1))));
  const std::int32_t* order = nullptr;
  for (int shift = 0; shift < bits; shift += digit_bits) {
    enqueue(count_digits_kernel, tiles, tile, 0, stream_, memory.counts, tokens, order, count, shift);
    enqueue(place_kernel, tiles, tile, 0, stream_, memory.sorted, memory.counts, tokens, order, count, shift);
    order = memory.sorted;
    std::swap(memory.sorted, memory.unsorted);
  }
  auto* dtable = data_of<float>(op.dtable);
  with_element_type(op.dout.dtype, [&]<class T>(T) {
    T* dout = data_of<T>(op.dout);
    constexpr int size = Vector<T>::size;
    const bool vectors = vectorizable(dout, width) && aligned_to_16(dtable);
    enqueue(vectors ? add_runs_kernel<T, size> : add_runs_kernel<T, 1>, chunks,
            threads_for_row(vectors ? width / size : width), 0, stream_, dtable, memory.partials, dout,
            tokens, order, count, width);
  });
  enqueue(add_partials_kernel, chunks, threads_for_row(width), 0, stream_, dtable, memory.partials, tokens,
          order, count, width);
}

}  // namespace goat::GOAT_TARGET
