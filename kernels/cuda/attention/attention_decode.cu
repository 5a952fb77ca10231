// Attention of a few queries to many keys (decoding against a KV cache). The keys are split over blocks. A
// block takes the queries of the heads that share its keys, up to 4 rows of them. Every group of threads
// walks over its keys with its own online softmax. The results of the groups, warps and blocks are merged in
// a fixed order.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention_ffma.cuh"
#include "kernels/cuda/attention/attention_ffma_tile.cuh"

namespace goat::GOAT_TARGET {

namespace {

constexpr int warps = 4, threads = 32 * warps;
constexpr int keys_at_once = 4;  // a group loads the rows of this many keys together

// A group of `lanes` threads shares a key. A thread has `chunks` vectors (16 bytes each) of the key's row:
// vector lane, lane + lanes, ...
template <class T, int D>
struct DecodeShape {
  static constexpr int size = Vector<T>::size, lanes = D / size < 32 ? D / size : 32,
                       chunks = D / size / lanes, width = size * chunks;
  static constexpr int groups = 32 / lanes;  // groups of a warp
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % lanes; }
  static __device__ __forceinline__ int coordinate(int i) {
    return (lane() + i / size * lanes) * size + i % size;
  }
};

// This thread's coordinates of a row. Coordinates from head_dim on are zeros; without a row all are zeros.
template <class Shape, class T>
struct RowPart {
  Vector<T> chunk[Shape::chunks];

  __device__ __forceinline__ RowPart(const T* row, bool exists, int head_dim, bool aligned) {
#pragma unroll
    for (int n = 0; n < Shape::chunks; ++n) {
      const int c = Shape::coordinate(n * Shape::size);
#pragma unroll
      for (int i = 0; i < Shape::size; ++i) chunk[n].element[i] = from_float<T>(0.0f);
      if (!exists || c >= head_dim) continue;
      if (aligned) {
        chunk[n] = Vector<T>::load(row + c);
      } else {
#pragma unroll
        for (int i = 0; i < Shape::size; ++i)
          if (c + i < head_dim) chunk[n].element[i] = row[c + i];
      }
    }
  }
  __device__ __forceinline__ float operator[](int i) const { return chunk[i / Shape::size][i % Shape::size]; }
};

// exp(x - maximum); 0 for x = -infinity, even if the maximum is -infinity too.
__device__ __forceinline__ float weight_of(float x, float maximum) {
  return x == -INFINITY ? 0.0f : expf(x - maximum);
}

// The softmax of some keys: their largest logit, the sum of exp(z - maximum), and the sum of
// exp(z - maximum) v.
template <int width>
struct Part {
  float maximum = -INFINITY, sum = 0, out[width] = {};

  // this <- this * own + other * weight
  __device__ __forceinline__ void combine(float own, float weight, float other_sum,
                                          const float (&other_out)[width]) {
    sum = own * sum + weight * other_sum;
#pragma unroll
    for (int i = 0; i < width; ++i) out[i] = own * out[i] + weight * other_out[i];
  }
};

// Merges the parts of a warp's groups. Group 0 has the result.
template <class Shape>
__device__ __forceinline__ void merge_groups(Part<Shape::width>& part) {
#pragma unroll
  for (int offset = Shape::lanes; offset < 32; offset *= 2) {
    Part<Shape::width> other;
    other.maximum = __shfl_xor_sync(all_lanes, part.maximum, offset);
    other.sum = __shfl_xor_sync(all_lanes, part.sum, offset);
#pragma unroll
    for (int i = 0; i < Shape::width; ++i) other.out[i] = __shfl_xor_sync(all_lanes, part.out[i], offset);
    const float largest = fmaxf(part.maximum, other.maximum);
    part.combine(weight_of(part.maximum, largest), weight_of(other.maximum, largest), other.sum, other.out);
    part.maximum = largest;
  }
}

// The rows of q of one head of k and v: row n is query n % T_q of the group's head n / T_q. `blocks` of them
// take at most decode_queries rows each.
struct RowBlocks {
  int rows, blocks;

  RowBlocks(int group, int queries)
      : rows(group * queries), blocks(static_cast<int>(divide_up(rows, decode_queries))) {}
};

// The parts of all splits in scratch memory, f32: maximum and sum [B, H, T_q, splits], out
// [B, H, T_q, splits, d_h].
struct DecodeParts {
  float *maximum, *sum, *out;
  int splits, keys_per_split;

  // About 512 blocks, but at least 128 keys a block, and at most 128 splits so that the merge is short. The
  // split depends on the shape alone.
  static constexpr std::int64_t least_keys = 128;
  static std::int64_t most_splits(int batch, int key_heads, const RowBlocks& rows) {
    const std::int64_t blocks = std::int64_t{batch} * key_heads * rows.blocks;
    return std::clamp<std::int64_t>(512 / std::max<std::int64_t>(1, blocks), 1, 128);
  }
  template <class T>
  DecodeParts(void* memory, int batch, const ForwardArguments<T>& arguments) {
    const std::int64_t most =
        most_splits(batch, arguments.key_heads, RowBlocks(arguments.groups.size, arguments.queries));
    keys_per_split = static_cast<int>(std::max(least_keys, divide_up(arguments.keys, most)));
    splits = static_cast<int>(divide_up(arguments.keys, keys_per_split));
    const std::int64_t count = std::int64_t{batch} * arguments.heads * arguments.queries * splits;
    maximum = static_cast<float*>(memory);
    sum = maximum + count;
    out = sum + count;
  }
};

// The rows of q that a block takes.
template <class Shape, int count>
struct QueryRows {
  float q[count][Shape::width], slope[count];
  int position[count];            // i'
  const double* key_bias[count];  // of the row's head; nullptr without a key bias

  template <class T>
  __device__ __forceinline__ QueryRows(const ForwardArguments<T>& arguments, int sequence, int key_head,
                                       int first_row, bool aligned) {
    const int group = arguments.groups.size, queries = arguments.queries;
#pragma unroll
    for (int n = 0; n < count; ++n) {
      const bool exists = first_row + n < group * queries;
      const int row = exists ? first_row + n : 0, head = key_head * group + row / queries,
                query = row % queries;
      const RowPart<Shape, T> part(arguments.q.head(sequence, head).row(query), exists, arguments.head_dim,
                                   aligned);
#pragma unroll
      for (int i = 0; i < Shape::width; ++i) q[n][i] = part[i];
      slope[n] = arguments.slope ? arguments.slope[head] : 0.0f;
      position[n] = query + arguments.keys - queries;
      key_bias[n] = arguments.key_bias.data ? arguments.key_bias.keys(sequence, head) : nullptr;
    }
  }
};

// Adds the keys `key`, key + stride, ... (keys_at_once of them, only those before `end`) to the parts of all
// rows. Whole warps call this.
template <class Shape, int count, class T>
__device__ __forceinline__ void take_keys(Part<Shape::width> (&parts)[count],
                                          const QueryRows<Shape, count>& rows,
                                          const ForwardArguments<T>& arguments, HeadRows<const T> k,
                                          HeadRows<const T> v, int key, int stride, int end, bool aligned) {
  using Row = RowPart<Shape, T>;
  const auto row = [&](HeadRows<const T> of, int n) {
    const int at = key + n * stride;
    return Row(of.row(at), at < end, arguments.head_dim, aligned);
  };
  static_assert(keys_at_once == 4);
  const Row k_rows[keys_at_once] = {row(k, 0), row(k, 1), row(k, 2), row(k, 3)};
  const Row v_rows[keys_at_once] = {row(v, 0), row(v, 1), row(v, 2), row(v, 3)};
#pragma unroll
  for (int r = 0; r < count; ++r) {
    const int position = rows.position[r];
    Part<Shape::width>& part = parts[r];
    float logit[keys_at_once], largest = part.maximum;
#pragma unroll
    for (int n = 0; n < keys_at_once; ++n) {
      float product = 0;
#pragma unroll
      for (int i = 0; i < Shape::width; ++i) product += rows.q[r][i] * k_rows[n][i];
#pragma unroll
      for (int offset = Shape::lanes / 2; offset > 0; offset /= 2)
        product += __shfl_xor_sync(all_lanes, product, offset);
      const int at = key + n * stride;
      const bool seen = at < end && (!arguments.causal || at <= position);
      float z = product * arguments.scale + rows.slope[r] * static_cast<float>(at - position);
      if (rows.key_bias[r] && seen)
        z += static_cast<float>(rows.key_bias[r][at] - rows.key_bias[r][position]);
      logit[n] = seen ? z : -INFINITY;
      largest = fmaxf(largest, logit[n]);
    }
    const float shrink = weight_of(part.maximum, largest);
    part.maximum = largest;
    part.sum *= shrink;
#pragma unroll
    for (float& value : part.out) value *= shrink;
#pragma unroll
    for (int n = 0; n < keys_at_once; ++n) {
      const float weight = weight_of(logit[n], largest);
      part.sum += weight;
#pragma unroll
      for (int i = 0; i < Shape::width; ++i) part.out[i] += weight * v_rows[n][i];
    }
  }
}

// Merges one query's part of one split over the warps of the block and stores it. `row` is its place in
// [B, H, T_q, splits].
template <class Shape, int D>
__device__ __forceinline__ void store_part(Part<Shape::width>& part, const DecodeParts& parts,
                                           std::int64_t row, int head_dim) {
  GOAT_SHARED(maximum, float[warps]);
  GOAT_SHARED(sum, float[warps]);
  GOAT_SHARED(out, float[warps][D]);
  merge_groups<Shape>(part);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // other warps may still read the parts of the previous query
  if (lane < Shape::lanes) {
    if (lane == 0) maximum[warp] = part.maximum, sum[warp] = part.sum;
#pragma unroll
    for (int i = 0; i < Shape::width; ++i) out[warp][Shape::coordinate(i)] = part.out[i];
  }
  __syncthreads();
  float largest = maximum[0];
#pragma unroll
  for (int w = 1; w < warps; ++w) largest = fmaxf(largest, maximum[w]);
  float weight[warps], total = 0;
#pragma unroll
  for (int w = 0; w < warps; ++w) {
    weight[w] = weight_of(maximum[w], largest);
    total += weight[w] * sum[w];
  }
  for (int c = threadIdx.x; c < head_dim; c += threads) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) value += weight[w] * out[w][c];
    parts.out[row * head_dim + c] = value;
  }
  if (threadIdx.x == 0) parts.maximum[row] = largest, parts.sum[row] = total;
}

// grid (splits, H_k times blocks of rows, B). `count` is at least the number of rows of a block.
template <class T, int D, int count>
__global__ void __launch_bounds__(threads)
    split_kernel(const ForwardArguments<T> arguments, const DecodeParts parts, int row_blocks, bool aligned) {
  using Shape = DecodeShape<T, D>;
  constexpr int stride = warps * Shape::groups;
  const int split = blockIdx.x, key_head = static_cast<int>(blockIdx.y) / row_blocks, sequence = blockIdx.z,
            first_row = static_cast<int>(blockIdx.y) % row_blocks * count;
  const QueryRows<Shape, count> rows(arguments, sequence, key_head, first_row, aligned);
  Part<Shape::width> gathered[count];
  const int first = split * parts.keys_per_split, end = min(first + parts.keys_per_split, arguments.keys);
  const int group = static_cast<int>(threadIdx.x) / Shape::lanes;
  const HeadRows<const T> k = arguments.k.head(sequence, key_head), v = arguments.v.head(sequence, key_head);
#pragma unroll 1
  for (int key = first; key < end; key += keys_at_once * stride)
    take_keys<Shape, count>(gathered, rows, arguments, k, v, key + group, stride, end, aligned);

  // The rows of a group's heads are neighbours in [B, H, T_q].
  const int group_rows = arguments.groups.size * arguments.queries;
  const std::int64_t place =
      (static_cast<std::int64_t>(sequence) * arguments.key_heads + key_head) * group_rows + first_row;
#pragma unroll
  for (int n = 0; n < count; ++n)
    if (first_row + n < group_rows)
      store_part<Shape, D>(gathered[n], parts, (place + n) * parts.splits + split, arguments.head_dim);
}

// grid (T_q, H, B). Merges the parts of one query to out and lse.
template <class T>
__global__ void __launch_bounds__(threads)
    merge_kernel(const ForwardArguments<T> arguments, const DecodeParts parts) {
  const int query = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
  const std::int64_t row =
      (static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.queries + query;
  const float *maximum = parts.maximum + row * parts.splits, *sum = parts.sum + row * parts.splits;
  const float* out = parts.out + row * parts.splits * arguments.head_dim;
  float largest = maximum[0];
  for (int split = 1; split < parts.splits; ++split) largest = fmaxf(largest, maximum[split]);
  T* to = arguments.out.head(sequence, head).row(query);
  for (int c = threadIdx.x; c < arguments.head_dim; c += threads) {
    float total = 0, value = 0;
#pragma unroll 4
    for (int split = 0; split < parts.splits; ++split) {
      const float weight = weight_of(maximum[split], largest);
      total += weight * sum[split];
      value += weight * out[static_cast<std::int64_t>(split) * arguments.head_dim + c];
    }
    to[c] = from_float<T>(value / total);
    if (c == 0) arguments.lse[row] = largest + logf(total);
  }
}

}  // namespace

// Never less than for fewer keys, so that memory for a full cache serves until it is full.
std::size_t decode_scratch_bytes(const AttentionForward& op) {
  const std::int64_t group = op.q.shape[2] / std::max<std::int64_t>(1, op.k.shape[2]);
  const RowBlocks rows(static_cast<int>(group), static_cast<int>(op.q.shape[1]));
  const std::int64_t most = DecodeParts::most_splits(static_cast<int>(op.q.shape[0]),
                                                     static_cast<int>(op.k.shape[2]), rows),
                     splits = std::min(most, divide_up(op.k.shape[1], DecodeParts::least_keys));
  return static_cast<std::size_t>(op.lse.elements() * splits) *
         (2 + static_cast<std::size_t>(op.q.shape[3])) * sizeof(float);
}

// Reads k and v once for every 4 rows of q that share them. Writes and reads the parts: (d_h + 2) floats for
// each query, head and split of 128 keys or more.
template <class T>
void attention_decode(const ForwardArguments<T>& arguments, int batch, void* memory, Stream stream) {
  if (arguments.queries > decode_queries)
    throw std::invalid_argument("attention_decode: more than 4 queries");
  const DecodeParts parts(memory, batch, arguments);
  const RowBlocks rows(arguments.groups.size, arguments.queries);
  for_each_part(batch, [&](int first, int sequences) {
    const ForwardArguments<T> own = arguments.after(first);
    with_head_dim(arguments.head_dim, [&]<int D>(std::integral_constant<int, D>) {
      const auto kernel = rows.rows == 1 ? split_kernel<T, D, 1> : split_kernel<T, D, decode_queries>;
      enqueue(kernel, Grid(parts.splits, std::int64_t{arguments.key_heads} * rows.blocks, sequences), threads,
              0, stream, own, parts, rows.blocks, arguments.aligned());
    });
    // After this kernel the next part of the batch may overwrite `parts`.
    enqueue(merge_kernel<T>, Grid(arguments.queries, arguments.heads, sequences), threads, 0, stream, own,
            parts);
  });
}
template void attention_decode(const ForwardArguments<float>&, int, void*, Stream);
template void attention_decode(const ForwardArguments<bf16>&, int, void*, Stream);

}  // namespace goat::GOAT_TARGET
