// The relative prior: Fourier table, lanes of q and k, gradients of alpha, beta, lambda and w, and the
// softplus of the slope.
#include <algorithm>

#include "kernels/cuda/attention/attention_heads.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fourier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

namespace {
constexpr int threads = 256, warps = threads / 32;

std::int64_t blocks_for(std::int64_t items) { return divide_up(items, threads); }

template <class Frequency>
__global__ void __launch_bounds__(threads)
    fourier_table_kernel(float* __restrict__ table, const Frequency* __restrict__ frequency,
                         const std::int32_t* __restrict__ positions, std::int64_t rows, int modes, int axes) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x;
  if (i >= rows * modes) return;
  const int r = static_cast<int>(i % modes);
  const float2 pair = fourier_pair(frequency[r], positions[i / modes * axes + axis_of_mode(r, modes, axes)]);
  table[2 * i] = pair.x;
  table[2 * i + 1] = pair.y;
}
}  // namespace

// A thread owns (t, r). Writes 8 T R bytes. The cost is T R cos and sin in double precision.
void CudaDevice::launch(const FourierTable& op) {
  const std::int64_t rows = op.table.shape[0], modes = op.table.shape[1];
  if (rows * modes == 0) return;
  const auto fill = [&](auto* frequency) {
    enqueue(fourier_table_kernel<std::remove_pointer_t<decltype(frequency)>>, blocks_for(rows * modes),
            threads, 0, stream_, data_of<float>(op.table), frequency, data_of<std::int32_t>(op.positions),
            rows, static_cast<int>(modes), static_cast<int>(op.positions.shape[1]));
  };
  if (op.frequency.dtype == DType::f64)
    fill(data_of<double>(op.frequency));
  else
    fill(data_of<float>(op.frequency));
}

namespace {
template <class T>
struct LaneArguments {
  Heads<T> q, k;                                   // from coordinate d_c on
  const float *alpha, *beta, *key_bias, *fourier;  // key_bias and fourier from first_position on
  std::int64_t key_bias_stride;                    // T_max
  int batch, query_heads, key_heads;               // B, H and H_k, 0 without q or k
  int modes, lane_dim;                             // R, d_h - d_c
  float scale;
  bool paired = false;  // two lanes can be written by one store
};

// Lanes 2i and 2i + 1 of q (of k) in head h at row t.
template <class T>
__device__ __forceinline__ float2 query_lanes(const LaneArguments<T>& op, std::int64_t t, int h, int i) {
  if (i == op.modes) return make_float2(PriorLanesForward::key_bias_unit, PriorLanesForward::key_bias_unit);
  if (i > op.modes) return make_float2(0, 0);
  const float alpha = op.alpha[h * op.modes + i], beta = op.beta[h * op.modes + i];
  const float cosine = op.fourier[(t * op.modes + i) * 2], sine = op.fourier[(t * op.modes + i) * 2 + 1];
  return make_float2((alpha * cosine + beta * sine) / op.scale, (alpha * sine - beta * cosine) / op.scale);
}
template <class T>
__device__ __forceinline__ float2 key_lanes(const LaneArguments<T>& op, std::int64_t t, int h, int i) {
  if (i < op.modes)
    return make_float2(op.fourier[(t * op.modes + i) * 2], op.fourier[(t * op.modes + i) * 2 + 1]);
  if (i > op.modes) return make_float2(0, 0);
  const float bias = op.key_bias[h * op.key_bias_stride + t] / (op.scale * PriorLanesForward::key_bias_unit);
  const float high = to_float(from_float<T>(bias));
  return make_float2(high, bias - high);
}

__device__ __forceinline__ void store_pair(float* lanes, float2 pair) {
  *reinterpret_cast<float2*>(lanes) = pair;
}
__device__ __forceinline__ void store_pair(bf16* lanes, float2 pair) {
  *reinterpret_cast<std::uint32_t*>(lanes) = pack_bf16(pair.x, pair.y);
}

// Block (t, b) owns row t of the sequences b, b + gridDim.y, ...: first the lanes of its heads of q, then
// those of k. A thread writes two lanes.
template <class T>
__global__ void __launch_bounds__(threads) prior_lanes_kernel(const LaneArguments<T> op) {
  const std::int64_t t = blockIdx.x;
  const int pairs = (op.lane_dim + 1) / 2, query_items = op.query_heads * pairs,
            items = query_items + op.key_heads * pairs;
  for (int b = static_cast<int>(blockIdx.y); b < op.batch; b += static_cast<int>(gridDim.y))
    for (int item = static_cast<int>(threadIdx.x); item < items; item += static_cast<int>(blockDim.x)) {
      const bool is_query = item < query_items;
      const int within = is_query ? item : item - query_items, h = within / pairs, i = within % pairs;
      T* lanes =
          (is_query ? op.q.rows(b, h) + t * op.q.row_stride : op.k.rows(b, h) + t * op.k.row_stride) + 2 * i;
      const float2 pair = is_query ? query_lanes(op, t, h, i) : key_lanes(op, t, h, i);
      if (op.paired) {
        store_pair(lanes, pair);
      } else {
        lanes[0] = from_float<T>(pair.x);
        if (2 * i + 1 < op.lane_dim) lanes[1] = from_float<T>(pair.y);
      }
    }
}

// Whether all rows begin at a multiple of two elements.
template <class T>
bool pair_aligned(const Heads<T>& heads) {
  return reinterpret_cast<std::uintptr_t>(heads.data) % (2 * sizeof(T)) == 0 &&
         heads.sequence_stride % 2 == 0 && heads.row_stride % 2 == 0 && heads.head_stride % 2 == 0;
}
}  // namespace

// Writes d_h - d_c elements of each (b, t, h) of q and of k. Consecutive threads write consecutive lanes. The
// parameters and tables are read from cache.
void CudaDevice::launch(const PriorLanesForward& op) {
  const Tensor& x = op.q ? op.q : op.k;
  const std::int64_t heads = (op.q ? op.q.shape[2] : 0) + (op.k ? op.k.shape[2] : 0);
  if (x.shape[0] * x.shape[1] * heads == 0) return;
  with_element_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto lanes_of = [&](const Tensor& tensor) {
      return Heads<T>(tensor ? tensor.slice(3, op.content_dim, tensor.shape[3] - op.content_dim) : tensor);
    };
    LaneArguments<T> arguments{
        .q = lanes_of(op.q),
        .k = lanes_of(op.k),
        .alpha = data_of<float>(op.alpha),
        .beta = data_of<float>(op.beta),
        .key_bias = data_of<float>(op.key_bias) + op.first_position,
        .fourier = data_of<float>(op.fourier) + op.first_position * op.fourier.shape[1] * 2,
        .key_bias_stride = op.key_bias.shape[1],
        .batch = static_cast<int>(x.shape[0]),
        .query_heads = op.q ? static_cast<int>(op.q.shape[2]) : 0,
        .key_heads = op.k ? static_cast<int>(op.k.shape[2]) : 0,
        .modes = static_cast<int>(op.fourier.shape[1]),
        .lane_dim = static_cast<int>(x.shape[3] - op.content_dim),
        .scale = op.scale};
    arguments.paired = arguments.lane_dim % 2 == 0 && pair_aligned(arguments.q) && pair_aligned(arguments.k);
    const std::int64_t items = heads * ((arguments.lane_dim + 1) / 2);
    const Grid grid(x.shape[1], std::min(x.shape[0], Grid::most_yz()));
    const dim3 block(static_cast<unsigned>(std::min<std::int64_t>(divide_up(items, 32) * 32, threads)));
    enqueue(prior_lanes_kernel<T>, grid, block, 0, stream_, arguments);
  });
}

namespace {
// The sums over the rows t and the sequences for one head and mode. (cos, sin) belongs to row t, p is the
// row's position, dA and dC are the gradients of the lanes of q and of k.
enum LaneSum {
  along,                // dA . (cos, sin)
  across,               // dA . (sin, -cos)
  position_along,       // p dA . (cos, sin)
  position_across,      // p dA . (sin, -cos)
  key_across,           // dC . (sin, -cos)
  key_position_across,  // p dC . (sin, -cos)
  slope,                // dslope; only with mode 0
  position,             // p, summed over the rows that have a position
  count,                // the number of these rows
  lane_sums
};

struct LaneBackwardArguments {
  float *dalpha, *dbeta, *dlambda, *dfrequency;  // dlambda, dfrequency: nullptr if absent
  const float *dq_lanes, *dk_lanes, *dslope, *alpha, *beta, *fourier;  // dk_lanes, dslope: nullptr if absent
  const std::int32_t* positions;
  std::int64_t rows;              // T
  int batch, heads, modes, axes;  // B, H, R, A
  int group;                      // H / H_k
  int columns = 0;                // modes that a block of sum_lane_gradients_kernel processes side by side
  std::int64_t tile_rows = 0;     // rows of a block
  double* partial = nullptr;      // [H, max(R, 1), lane_sums, partitions]
  int tiles = 0, slices = 0;      // partitions = tiles * slices: of the rows, of the batch

  __device__ __forceinline__ double* partials(int h, int r, int sum) const {
    return partial + ((static_cast<std::int64_t>(h) * max(modes, 1) + r) * lane_sums + sum) * tiles * slices;
  }
  std::int64_t all_partials() const {
    return static_cast<std::int64_t>(heads) * std::max(modes, 1) * lane_sums * tiles * slices;
  }
};

constexpr int slice_sequences = 16;  // sequences that a block sums

// The sum over the sequences first_b .. last_b - 1 of x[b, h, t, r, :], where x is [B, heads, T, R, 2].
struct DoublePair {
  double x = 0, y = 0;
};
__device__ __forceinline__ DoublePair sum_over_slice(const float* x, const LaneBackwardArguments& op,
                                                     int first_b, int last_b, int heads, int h,
                                                     std::int64_t t, int r) {
  const std::int64_t stride = heads * op.rows * op.modes;
  const auto* at = reinterpret_cast<const float2*>(x) + (h * op.rows + t) * op.modes + r;
  DoublePair sum;
#pragma unroll 4
  for (int b = first_b; b < last_b; ++b) {
    const float2 term = at[b * stride];
    sum.x += term.x;
    sum.y += term.y;
  }
  return sum;
}

// Adds row t of mode r, summed over the block's sequences, to sums.
__device__ __forceinline__ void add_row(double (&sums)[lane_sums], const LaneBackwardArguments& op,
                                        int first_b, int last_b, int h, std::int64_t t, int r) {
  if (op.dslope && r == 0)
    for (int b = first_b; b < last_b; ++b)
      sums[slope] += op.dslope[(static_cast<std::int64_t>(b) * op.heads + h) * op.rows + t];
  if (r >= op.modes) return;
  const int at = op.positions[t * op.axes + axis_of_mode(r, op.modes, op.axes)];
  const double p = at >= 0 ? at : 0, cosine = op.fourier[(t * op.modes + r) * 2],
               sine = op.fourier[(t * op.modes + r) * 2 + 1];
  const DoublePair query = sum_over_slice(op.dq_lanes, op, first_b, last_b, op.heads, h, t, r);
  sums[along] += query.x * cosine + query.y * sine;
  sums[across] += query.x * sine - query.y * cosine;
  if (!op.dk_lanes) return;
  sums[position_along] += p * (query.x * cosine + query.y * sine);
  sums[position_across] += p * (query.x * sine - query.y * cosine);
  sums[position] += p;
  sums[count] += at >= 0 ? 1 : 0;
  if (h % op.group > 0) return;  // the head of k belongs to the first head of its group
  const DoublePair key =
      sum_over_slice(op.dk_lanes, op, first_b, last_b, op.heads / op.group, h / op.group, t, r);
  sums[key_across] += key.x * sine - key.y * cosine;
  sums[key_position_across] += p * (key.x * sine - key.y * cosine);
}

// Block (slice, tile, h) stores its sums in `partial`. Thread (group, column) sums every groups-th row
// of the tile for one mode. Consecutive threads read consecutive pairs of lanes. At the end the groups
// are added in a tree.
__global__ void __launch_bounds__(threads) sum_lane_gradients_kernel(const LaneBackwardArguments op) {
  GOAT_SHARED(shared, double[lane_sums][threads]);
  const int slice = static_cast<int>(blockIdx.x), tile = static_cast<int>(blockIdx.y),
            h = static_cast<int>(blockIdx.z);
  const int thread = static_cast<int>(threadIdx.x), groups = threads / op.columns,
            group = thread / op.columns;
  const int first_b = slice * slice_sequences, last_b = min(op.batch, first_b + slice_sequences);
  const std::int64_t end = min(op.rows, (tile + 1) * op.tile_rows);
  for (int first_mode = 0; first_mode < max(op.modes, 1); first_mode += op.columns) {
    const int r = first_mode + thread % op.columns;
    double sums[lane_sums] = {};
    if (group < groups && r < max(op.modes, 1))
      for (std::int64_t t = tile * op.tile_rows + group; t < end; t += groups)
        add_row(sums, op, first_b, last_b, h, t, r);
#pragma unroll
    for (int sum = 0; sum < lane_sums; ++sum) shared[sum][thread] = sums[sum];
    __syncthreads();
    for (int left = groups; left > 1;) {
      const int half = (left + 1) / 2;
      if (group < left - half)
#pragma unroll
        for (int sum = 0; sum < lane_sums; ++sum)
          shared[sum][thread] += shared[sum][thread + half * op.columns];
      __syncthreads();
      left = half;
    }
    if (group == 0 && r < max(op.modes, 1))
#pragma unroll
      for (int sum = 0; sum < lane_sums; ++sum)
        op.partials(h, r, sum)[tile * op.slices + slice] = shared[sum][thread];
  }
}

// Block r adds up the partitions of mode r; a warp takes every 8th head. Block 0 also adds up the partitions
// of dslope. A shift of all positions by the same amount does not change dfrequency: the part of dA and the
// part of dC change by opposite amounts, because sum_i a_i' . dA_i + sum_j c_j' . dC_j = 0. So both parts may
// count positions from the mean position:
//   sum (p - mean) x = sum p x - mean sum x.
// This keeps the effect of the fp32 rounding of dA and dC small.
__global__ void __launch_bounds__(threads) finish_lane_gradients_kernel(const LaneBackwardArguments op) {
  GOAT_SHARED(frequency, double[warps]);
  const int r = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32;
  double dfrequency = 0;
  for (int h = warp; h < op.heads; h += warps) {
    double total[lane_sums];
#pragma unroll
    for (int sum = 0; sum < lane_sums; ++sum)
      total[sum] = warp_total(op.partials(h, r, sum), op.tiles * op.slices);
    if (lane == 0 && r == 0 && op.dlambda) op.dlambda[h] += static_cast<float>(total[slope]);
    if (lane > 0 || r >= op.modes) continue;
    const int hr = h * op.modes + r;
    op.dalpha[hr] += static_cast<float>(total[along]);
    op.dbeta[hr] += static_cast<float>(total[across]);
    const double mean = total[count] > 0 ? total[position] / total[count] : 0;
    dfrequency += op.beta[hr] * (total[position_along] - mean * total[along]) -
                  op.alpha[hr] * (total[position_across] - mean * total[across]) -
                  (total[key_position_across] - mean * total[key_across]);
  }
  if (lane == 0) frequency[warp] = dfrequency;
  __syncthreads();
  if (threadIdx.x > 0 || !op.dfrequency || r >= op.modes) return;
  double total = 0;
  for (const double of_warp : frequency) total += of_warp;
  op.dfrequency[r] += static_cast<float>(total);
}
}  // namespace

namespace {
// The partitions (at most 256 tiles of the rows, 16 sequences each) depend on the shapes alone.
LaneBackwardArguments arguments_of(const PriorLanesBackward& op, void* partial) {
  const std::int64_t rows = op.dq_lanes.shape[2];
  const int batch = static_cast<int>(op.dq_lanes.shape[0]), modes = static_cast<int>(op.alpha.shape[1]),
            columns = std::clamp(modes, 1, threads), groups = threads / columns;
  const std::int64_t tile_rows = groups * std::max<std::int64_t>(1, divide_up(rows, 256 * groups));
  return {.dalpha = data_of<float>(op.dalpha),
          .dbeta = data_of<float>(op.dbeta),
          .dlambda = data_of<float>(op.dlambda),
          .dfrequency = data_of<float>(op.dfrequency),
          .dq_lanes = data_of<float>(op.dq_lanes),
          .dk_lanes = data_of<float>(op.dk_lanes),
          .dslope = data_of<float>(op.dslope),
          .alpha = data_of<float>(op.alpha),
          .beta = data_of<float>(op.beta),
          .fourier = data_of<float>(op.fourier),
          .positions = data_of<std::int32_t>(op.positions),
          .rows = rows,
          .batch = batch,
          .heads = static_cast<int>(op.dq_lanes.shape[1]),
          .modes = modes,
          .axes = static_cast<int>(op.positions.shape[1]),
          .group = op.dk_lanes && op.dk_lanes.shape[1] > 0
                       ? static_cast<int>(op.dq_lanes.shape[1] / op.dk_lanes.shape[1])
                       : 1,
          .columns = columns,
          .tile_rows = tile_rows,
          .partial = static_cast<double*>(partial),
          .tiles = static_cast<int>(divide_up(rows, tile_rows)),
          .slices = static_cast<int>(divide_up(batch, slice_sequences))};
}
}  // namespace

std::size_t CudaDevice::workspace(const PriorLanesBackward& op) const {
  const LaneBackwardArguments arguments = arguments_of(op, nullptr);
  return static_cast<std::size_t>(arguments.all_partials()) * sizeof(double);
}

// Reads dq_lanes, dk_lanes and dslope once: 4 B T (H (2R + 1) + 2 H_k R) bytes. All sums are in double,
// because the terms of a gradient nearly cancel.
void CudaDevice::launch(const PriorLanesBackward& op) {
  const LaneBackwardArguments arguments = arguments_of(op, workspace_.take(op));
  if (arguments.all_partials() == 0) return;
  enqueue(sum_lane_gradients_kernel, Grid(arguments.slices, arguments.tiles, arguments.heads), threads, 0,
          stream_, arguments);
  enqueue(finish_lane_gradients_kernel, std::max(arguments.modes, 1), threads, 0, stream_, arguments);
}

namespace {
// Computed in double, so that neither tail of the exponential loses digits.
__global__ void __launch_bounds__(threads)
    softplus_forward_kernel(float* out, const float* x, std::int64_t elements) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x;
  if (i >= elements) return;
  const double value = x[i];
  out[i] = static_cast<float>(fmax(value, 0.0) + log1p(exp(-fabs(value))));
}

__global__ void __launch_bounds__(threads)
    softplus_backward_kernel(float* dx, const float* dout, const float* x, std::int64_t elements) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(threads) + threadIdx.x;
  if (i < elements) dx[i] += static_cast<float>(dout[i] / (1 + exp(-static_cast<double>(x[i]))));
}
}  // namespace

// There is one element a head. A thread takes one element.
void CudaDevice::launch(const SoftplusForward& op) {
  const std::int64_t elements = op.out.elements();
  if (elements == 0) return;
  enqueue(softplus_forward_kernel, blocks_for(elements), threads, 0, stream_, data_of<float>(op.out),
          data_of<float>(op.x), elements);
}

void CudaDevice::launch(const SoftplusBackward& op) {
  const std::int64_t elements = op.dx.elements();
  if (elements == 0) return;
  enqueue(softplus_backward_kernel, blocks_for(elements), threads, 0, stream_, data_of<float>(op.dx),
          data_of<float>(op.dout), data_of<float>(op.x), elements);
}

}  // namespace goat::GOAT_TARGET
