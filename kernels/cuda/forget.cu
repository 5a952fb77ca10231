// The forget gates, and the key bias that they add up to.
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/norm.cuh"

namespace goat::GOAT_TARGET {

namespace {
constexpr int gate_threads = 128, gate_tokens = 64, gate_heads = 16, gate_columns = 32;

// tile[i] = the columns first_column .. first_column + 31 of row first_row + i, and zeros beyond the matrix.
// A warp copies a row.
template <int count, class T>
__device__ __forceinline__ void load_rows(float (&tile)[count][gate_columns + 1], const T* x,
                                          std::int64_t rows, std::int64_t width, std::int64_t first_row,
                                          std::int64_t first_column) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 0; i < count; i += gate_threads / 32) {
    const std::int64_t row = first_row + warp + i, column = first_column + lane;
    tile[warp + i][lane] = row < rows && column < width ? to_float(x[row * width + column]) : 0.0f;
  }
}

// A block computes the gates of 64 tokens and 16 heads. A thread has the tokens lane % 16 + 16i and two
// heads. The blocks of the same tokens are neighbours.
template <class T>
__global__ void __launch_bounds__(gate_threads)
    forget_gates_kernel(float* gate, const T* x, const float* weight, const float* bias, std::int64_t tokens,
                        int heads, std::int64_t width) {
  GOAT_SHARED(token_rows, float[gate_tokens][gate_columns + 1]);
  GOAT_SHARED(head_rows, float[gate_heads][gate_columns + 1]);
  const int head_blocks = (heads + gate_heads - 1) / gate_heads;
  const std::int64_t first_token = std::int64_t{blockIdx.x} / head_blocks * gate_tokens;
  const int first_head = static_cast<int>(blockIdx.x % head_blocks) * gate_heads;
  const int token = static_cast<int>(threadIdx.x) % 16, head = static_cast<int>(threadIdx.x) / 16;
  float sums[gate_tokens / 16][2] = {};
  for (std::int64_t first_column = 0; first_column < width; first_column += gate_columns) {
    load_rows(token_rows, x, tokens, width, first_token, first_column);
    load_rows(head_rows, weight, heads, width, first_head, first_column);
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < gate_columns; ++c)
#pragma unroll
      for (int i = 0; i < gate_tokens / 16; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) sums[i][j] += token_rows[token + 16 * i][c] * head_rows[head + 8 * j][c];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < gate_tokens / 16; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::int64_t n = first_token + token + 16 * i;
      const int h = first_head + head + 8 * j;
      if (n < tokens && h < heads) gate[n * heads + h] = sums[i][j] + bias[h];
    }
}
}  // namespace

// Cost: 2 N H C FLOPs. Reads x once, and again from L2 for every 16 heads more.
void CudaDevice::launch(const ForgetGatesForward& op) {
  const std::int64_t tokens = op.x.shape[0], width = op.x.shape[1], heads = op.weight.shape[0];
  if (tokens * heads == 0) return;
  with_element_type(op.x.dtype, [&]<class T>(T) {
    enqueue(forget_gates_kernel<T>, divide_up(tokens, gate_tokens) * divide_up(heads, gate_heads),
            gate_threads, 0, stream_, data_of<float>(op.gate), data_of<T>(op.x), data_of<float>(op.weight),
            data_of<float>(op.bias), tokens, static_cast<int>(heads), width);
  });
}

namespace {
template <class T>
struct GatesBackward {
  T* dx;
  const T* x;
  const float *dgate, *weight;
  std::int64_t tokens, width;  // N, C
  int heads;
  int column_blocks = 0;            // blocks side by side, each of blockDim.x packs of columns
  std::int64_t partition_rows = 0;  // tokens of a block of forget_weight_kernel
  float *dweight_parts = nullptr, *dbias_parts = nullptr;  // [partitions, H, C], [partitions, H]
};

// The first of a thread's n columns.
template <int n>
__device__ __forceinline__ std::int64_t first_column(unsigned column_block) {
  return (std::int64_t{column_block} * blockDim.x + threadIdx.x) * n;
}

constexpr int input_tokens = 8;

// A block takes 8 tokens and a block of columns, a thread n columns.
template <class T, int n>
__global__ void __launch_bounds__(most_row_threads) forget_input_kernel(const GatesBackward<T> op) {
  const std::int64_t first = std::int64_t{blockIdx.x} / op.column_blocks * input_tokens,
                     c = first_column<n>(blockIdx.x % op.column_blocks);
  if (c >= op.width) return;
  float sums[input_tokens][n] = {};
  for (int h = 0; h < op.heads; ++h) {
    const auto weight = Pack<float, n>::load(op.weight + h * op.width + c);
#pragma unroll
    for (int i = 0; i < input_tokens; ++i) {
      const float gate = op.dgate[(first + i < op.tokens ? first + i : first) * op.heads + h];
#pragma unroll
      for (int e = 0; e < n; ++e) sums[i][e] += gate * weight[e];
    }
  }
#pragma unroll
  for (int i = 0; i < input_tokens; ++i) {
    if (first + i >= op.tokens) break;
    T* to = op.dx + (first + i) * op.width + c;
    auto dx = Pack<T, n>::load(to);
#pragma unroll
    for (int e = 0; e < n; ++e) dx.set(e, dx[e] + sums[i][e]);
    dx.store(to);
  }
}

template <int n>
constexpr int weight_heads = n > 4 ? 8 : 16;  // of a block: 64 sums a thread with vectors

// A block sums over the tokens of a partition for a few heads and a block of columns. A thread takes n
// columns. The blocks of the same tokens and columns are neighbours.
template <class T, int n>
__global__ void __launch_bounds__(most_row_threads) forget_weight_kernel(const GatesBackward<T> op) {
  constexpr int count = weight_heads<n>;
  const int head_blocks = (op.heads + count - 1) / count,
            first_head = static_cast<int>(blockIdx.x % head_blocks) * count;
  const unsigned block = blockIdx.x / head_blocks, column_block = block % op.column_blocks;
  const std::int64_t partition = block / op.column_blocks, begin = partition * op.partition_rows,
                     end = begin + op.partition_rows < op.tokens ? begin + op.partition_rows : op.tokens;
  const std::int64_t c = first_column<n>(column_block);
  float sums[count][n] = {}, bias_sums[count] = {};
#pragma unroll 4
  for (std::int64_t row = begin; row < end; ++row) {
    Pack<T, n> x{};
    if (c < op.width) x = Pack<T, n>::load(op.x + row * op.width + c);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float gate = first_head + i < op.heads ? op.dgate[row * op.heads + first_head + i] : 0.0f;
      bias_sums[i] += gate;
#pragma unroll
      for (int e = 0; e < n; ++e) sums[i][e] += gate * x[e];
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const std::int64_t head = partition * op.heads + first_head + i;
    if (first_head + i >= op.heads) break;
    if (c == 0) op.dbias_parts[head] = bias_sums[i];
    if (c >= op.width) continue;
    Pack<float, n> part;
#pragma unroll
    for (int e = 0; e < n; ++e) part.set(e, sums[i][e]);
    part.store(op.dweight_parts + head * op.width + c);
  }
}

// At most 256 partitions of the tokens, and few enough that they take no more memory than half of x in bf16.
// They depend on the shapes alone.
std::int64_t rows_of_partition(std::int64_t tokens, std::int64_t heads) {
  return std::max({std::int64_t{64}, 4 * heads, divide_up(tokens, 256)});
}

struct GatesBackwardMemory {
  std::int64_t partitions;
  float *dweight, *dbias;  // [partitions, H, C], [partitions, H]
  std::size_t bytes;

  explicit GatesBackwardMemory(const ForgetGatesBackward& op, void* workspace = nullptr)
      : partitions(divide_up(op.x.shape[0], rows_of_partition(op.x.shape[0], op.weight.shape[0]))) {
    WorkspaceArrays arrays(workspace);
    dweight = arrays.next<float>(partitions * op.weight.elements());
    dbias = arrays.next<float>(partitions * op.weight.shape[0]);
    bytes = arrays.bytes();
  }
};

template <class T, int n>
void enqueue_gates_backward(Stream stream, GatesBackward<T> op, std::int64_t partitions) {
  const int threads = threads_for_row(divide_up(op.width, n));
  op.column_blocks = static_cast<int>(std::max<std::int64_t>(1, divide_up(op.width, threads * n)));
  enqueue(forget_input_kernel<T, n>, divide_up(op.tokens, input_tokens) * op.column_blocks, threads, 0,
          stream, op);
  enqueue(forget_weight_kernel<T, n>, partitions * op.column_blocks * divide_up(op.heads, weight_heads<n>),
          threads, 0, stream, op);
}
}  // namespace

std::size_t CudaDevice::workspace(const ForgetGatesBackward& op) const {
  return GatesBackwardMemory(op).bytes;
}

// Cost: 4 N H C FLOPs. Reads and writes dx once. Reads x once, and again from L2 for every 8 or 16 heads
// more. The partitions' sums are fp32; they are added up in double.
void CudaDevice::launch(const ForgetGatesBackward& op) {
  const GatesBackwardMemory memory(op, workspace_.take(op));
  const std::int64_t tokens = op.x.shape[0], width = op.x.shape[1], heads = op.weight.shape[0];
  if (tokens * heads == 0) return;
  with_element_type(op.x.dtype, [&]<class T>(T) {
    const GatesBackward<T> gates{.dx = data_of<T>(op.dx),
                                 .x = data_of<T>(op.x),
                                 .dgate = data_of<float>(op.dgate),
                                 .weight = data_of<float>(op.weight),
                                 .tokens = tokens,
                                 .width = width,
                                 .heads = static_cast<int>(heads),
                                 .partition_rows = rows_of_partition(tokens, heads),
                                 .dweight_parts = memory.dweight,
                                 .dbias_parts = memory.dbias};
    if (vectorizable(gates.x, width) && aligned_to_16(gates.dx, gates.weight))
      enqueue_gates_backward<T, Vector<T>::size>(stream_, gates, memory.partitions);
    else
      enqueue_gates_backward<T, 1>(stream_, gates, memory.partitions);
  });
  const auto add_parts = [&](const Tensor& total, float* parts) {
    if (total.elements() == 0) return;
    enqueue(norm_add_partials_kernel<false>, divide_up(total.elements(), 32), 32 * slices, 0, stream_,
            data_of<float>(total), nullptr, parts, memory.partitions, static_cast<int>(total.elements()));
  };
  add_parts(op.dweight, memory.dweight);
  add_parts(op.dbias, memory.dbias);
}

namespace {
constexpr int scan_threads = 256, scan_items = 4;

// items[i] <- carry + the sum of all items of the block up to it; carry <- the last of these sums. A thread's
// items come after those of the threads before it. All threads call this.
__device__ __forceinline__ void scan(double (&items)[scan_items], double& carry) {
  GOAT_SHARED(totals, double[scan_threads / 32]);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int i = 1; i < scan_items; ++i) items[i] += items[i - 1];
  double sum = items[scan_items - 1];  // of the warp's items up to this thread's last
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double earlier = __shfl_up_sync(all_lanes, sum, offset);
    if (lane >= offset) sum += earlier;
  }
  __syncthreads();  // other warps may still read the totals of the previous call
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  double before = __shfl_up_sync(all_lanes, sum, 1);
  if (lane == 0) before = 0;
  for (int other = 0; other < static_cast<int>(blockDim.x) / 32; ++other) {
    if (other == warp) before += carry;
    carry += totals[other];
  }
#pragma unroll
  for (double& item : items) item += before;
}

// Of the gates [B, T, H], those of sequence b and head h.
struct GateRow {
  std::int64_t first, stride;
  __device__ __forceinline__ GateRow(std::int64_t b, std::int64_t h, std::int64_t length, std::int64_t heads)
      : first(b * length * heads + h), stride(heads) {}
  __device__ __forceinline__ std::int64_t at(std::int64_t t) const { return first + t * stride; }
};

// Block b H + h takes head h of sequence b, a tile of blockDim.x * scan_items positions at a time.
__global__ void __launch_bounds__(scan_threads)
    forget_bias_kernel(double* key_bias, const float* gate, std::int64_t length, int heads,
                       std::int64_t sequence_stride, std::int64_t head_stride, bool goes_on) {
  const std::int64_t b = blockIdx.x / heads, h = blockIdx.x % heads;
  const GateRow gates(b, h, length, heads);
  double* row = key_bias + b * sequence_stride + h * head_stride;
  double carry = goes_on ? row[-1] : 0;
  for (std::int64_t tile = 0; tile < length; tile += std::int64_t{blockDim.x} * scan_items) {
    const std::int64_t first = tile + std::int64_t{threadIdx.x} * scan_items;
    double items[scan_items];
#pragma unroll
    for (int i = 0; i < scan_items; ++i) {
      const double x = first + i < length ? gate[gates.at(first + i)] : INFINITY;
      items[i] = log1p(exp(-fabs(x))) - fmin(x, 0.0);  // -log sigmoid(x)
    }
    scan(items, carry);
#pragma unroll
    for (int i = 0; i < scan_items; ++i)
      if (first + i < length) row[first + i] = items[i];
  }
}

// The same from the last position to the first.
__global__ void __launch_bounds__(scan_threads)
    forget_bias_backward_kernel(float* dgate, const float* dkey_bias, const float* gate, std::int64_t length,
                                int heads) {
  const std::int64_t b = blockIdx.x / heads, h = blockIdx.x % heads;
  const GateRow gates(b, h, length, heads);
  const float* row = dkey_bias + std::int64_t{blockIdx.x} * length;
  double carry = 0;
  for (std::int64_t tile = length - 1; tile >= 0; tile -= std::int64_t{blockDim.x} * scan_items) {
    const std::int64_t last = tile - std::int64_t{threadIdx.x} * scan_items;
    double items[scan_items];
#pragma unroll
    for (int i = 0; i < scan_items; ++i) items[i] = last >= i ? row[last - i] : 0.0f;
    scan(items, carry);
#pragma unroll
    for (int i = 0; i < scan_items; ++i)
      if (last >= i) {
        const std::int64_t at = gates.at(last - i);
        dgate[at] = static_cast<float>(-items[i] / (1 + exp(static_cast<double>(gate[at]))));
      }
  }
}

int scan_block(std::int64_t length) {
  return static_cast<int>(
      std::min<std::int64_t>(scan_threads, divide_up(divide_up(length, scan_items), 32) * 32));
}
}  // namespace

// Memory traffic: 4 + 8 bytes a gate. The heads of a token are read by neighbouring blocks, mostly from L2.
void CudaDevice::launch(const ForgetBiasForward& op) {
  const std::int64_t batch = op.gate.shape[0], length = op.gate.shape[1], heads = op.gate.shape[2];
  if (op.gate.elements() == 0) return;
  enqueue(forget_bias_kernel, batch * heads, scan_block(length), 0, stream_,
          data_of<double>(op.key_bias) + op.first_position, data_of<float>(op.gate), length,
          static_cast<int>(heads), op.key_bias.stride[0], op.key_bias.stride[1], op.first_position > 0);
}

// Memory traffic: 12 bytes a gate.
void CudaDevice::launch(const ForgetBiasBackward& op) {
  const std::int64_t batch = op.gate.shape[0], length = op.gate.shape[1], heads = op.gate.shape[2];
  if (op.gate.elements() == 0) return;
  enqueue(forget_bias_backward_kernel, batch * heads, scan_block(length), 0, stream_,
          data_of<float>(op.dgate), data_of<float>(op.dkey_bias), data_of<float>(op.gate), length,
          static_cast<int>(heads));
}

}  // namespace goat::GOAT_TARGET
