// Attention, backward, bf16 on tensor cores (Dao 2023, FlashAttention-2, algorithm 2). p is recomputed from
// the saved log-sum-exp. Then
//   dS_ij = p_ij (<dout_i, v_j> - delta_i),  delta_i = <dout_i, out_i>,
//   dv = p^T dout,  dk = scale dS^T q,  dq = scale dS k.
//
// Three kernels, all with sums in a fixed order (AttentionBackward::deterministic):
//   attention_delta_kernel      computes delta.
//   attention_backward_queries  a block owns queries and computes dq; it also corrects delta.
//   attention_backward_keys     a block owns keys; it computes dv, dk and the prior's sums from dS in fp32.
// In exact arithmetic every row of dS sums to 0. But `out` is rounded to bf16, so delta has an error and the
// rows of dS do not sum to 0. The pass over queries adds the sum of each row to its delta. The pass over keys
// uses the corrected delta.
//
// dq is a sum over the keys; dk and dv are sums over the queries. A pass computes the sums over the rows that
// it walks over. The two passes form p and dS twice: 7 products of 2 D FLOPs a (query, key) pair instead of
// 5. In return they need no fp32 dq in memory and no atomics.
//
// deterministic = false: the pass over keys adds its part of dq to an fp32 workspace by atomics, with 5
// products. One small step zeroes the workspace before the pass, another converts it to dq after the pass.
// The workspace has 4 B H T_q D bytes (T_q rounded up to tiles of 64). It is zeroed once, added to by each of
// the ceil(T_k / keys) blocks (half of them if causal), and read once. It has the layout of the accumulators
// (DqSums), so that a warp adds 512 bytes without gaps at a time. Where shared memory is too small (d_h > 64
// on sm_86, sm_89, sm_120) the deterministic form runs.
//
// The prior's lanes are ordinary coordinates. Their gradients are stored in fp32 from the accumulators
// (dq_lanes, dk_lanes). In dq and dk these coordinates are zeros.
#include "kernels/cuda/attention/attention_backward.cuh"
#include "kernels/cuda/attention/attention_dq_sums.cuh"
#include "kernels/cuda/attention/attention_ffma.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/runtime.cuh"

namespace goat::GOAT_TARGET {

namespace {

// Whether attention_backward_keys can take dq_sum.
bool can_add_dq(int head_dim, Family family) {
  bool possible = false;
  with_tile_shape(
      head_dim, family,
      [&]<int D, Family chosen>(std::integral_constant<int, D>, std::integral_constant<Family, chosen>) {
        possible = has_dq_form<D, chosen>;
      });
  return possible;
}

void attention_backward_keys(const BackwardArguments<bf16>& arguments, int batch, Family family,
                             float* dq_sum, Stream stream) {
  with_tile_shape(arguments.head_dim, family,
                  [&]<int D, class Chosen>(std::integral_constant<int, D>, Chosen) {
                    attention_backward_keys_of<D>(arguments, batch, family, dq_sum, stream);
                  });
}

constexpr int delta_threads = 256, delta_lanes = 8;

// delta_lanes neighbouring lanes take one row (b, i, h). The rows are in memory order, so that a warp reads
// consecutive vectors.
template <class T, bool vectors>
__global__ void __launch_bounds__(delta_threads)
    attention_delta_kernel(const BackwardArguments<T> arguments, std::int64_t rows) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (delta_threads / delta_lanes) + threadIdx.x / delta_lanes;
  // All lanes must take part in the sum, so a lane without a row takes the last row.
  const std::int64_t present = row < rows ? row : rows - 1;
  const int head = static_cast<int>(present % arguments.heads),
            query = static_cast<int>(present / arguments.heads % arguments.queries);
  const int sequence = static_cast<int>(present / arguments.heads / arguments.queries),
            lane = threadIdx.x % delta_lanes;
  const T* dout = arguments.dout.rows(sequence, head) + query * arguments.dout.row_stride;
  const T* out = arguments.out.rows(sequence, head) + query * arguments.out.row_stride;
  float sum = 0;
  // Without vectors a lane takes the same coordinates. So zeros appended to the rows change no bit of delta.
  constexpr int size = Vector<T>::size;
  for (int c = lane * size; c < arguments.head_dim; c += delta_lanes * size) {
    if constexpr (vectors) {
      const auto a = Vector<T>::load(dout + c), b = Vector<T>::load(out + c);
#pragma unroll
      for (int i = 0; i < size; ++i) sum = fmaf(a[i], b[i], sum);
    } else {
      for (int i = c; i < min(c + size, arguments.head_dim); ++i)
        sum = fmaf(to_float(dout[i]), to_float(out[i]), sum);
    }
  }
#pragma unroll
  for (int offset = delta_lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(all_lanes, sum, offset);
  if (lane == 0 && row < rows)
    arguments
        .delta[(static_cast<std::int64_t>(sequence) * arguments.heads + head) * arguments.queries + query] =
        sum;
}

constexpr int finish_threads = 256;

// dq and dq_lanes from DqSums. A thread takes 8 coordinates of two rows of one fragment. It reads them as 64
// consecutive bytes or as four times 16 bytes. D / 8 neighbouring threads write 2 D consecutive bytes.
template <int D>
__global__ void __launch_bounds__(finish_threads)
    attention_finish_dq_kernel(const BackwardArguments<bf16> arguments, const float* dq_sum,
                               std::int64_t count) {
  using Sums = DqSums<D>;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * finish_threads + threadIdx.x,
                     pair = index / (D / 8);
  const int chunk = static_cast<int>(index % (D / 8)), column = 8 * chunk;
  if (index >= count || column >= arguments.head_dim) return;
  const int tiles = Sums::tiles(arguments.queries), row = static_cast<int>(pair % 8),
            row_group = static_cast<int>(pair / 8 % 4);
  const std::int64_t tile = pair / 32, head_index = tile / tiles;
  const int first_query = static_cast<int>(tile % tiles) * Sums::queries + 16 * row_group + row;
  const int warp = row_group + 4 * (chunk / Sums::fragments);
  const float* from = dq_sum + tile * Sums::tile_elements +
                      (warp * Sums::fragments + chunk % Sums::fragments) * Sums::fragment_elements;
  Vector<float> parts[4];  // [lane - 4 row][i] with vectors, else [i][lane - 4 row]
#pragma unroll
  for (int i = 0; i < 4; ++i)
    parts[i] = Vector<float>::load(from + (WarpReduction::vectors ? WarpReduction::place(4 * row + i, 0)
                                                                  : WarpReduction::place(4 * row, i)));
  bf16* dq = arguments.dq.rows(static_cast<int>(head_index / arguments.heads),
                               static_cast<int>(head_index % arguments.heads));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + 8 * half;
    if (query >= arguments.queries) break;
    Vector<bf16> result;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int i = 2 * half + c % 2;
      const float sum = WarpReduction::vectors ? parts[c / 2][i] : parts[i][c / 2];
      const int lane = column + c - arguments.content_dim;
      result.set(c, lane < 0 ? arguments.scale * sum : 0.0f);
      if (arguments.dq_lanes && lane >= 0 && lane < arguments.lanes)
        arguments.dq_lanes[(head_index * arguments.queries + query) * arguments.lanes + lane] = sum;
    }
    result.store(dq + query * arguments.dq.row_stride + column);
  }
}

// dq_sum: memory of the DqSums.
void attention_backward_any_order(const BackwardArguments<bf16>& arguments, int batch, Family family,
                                  float* dq_sum, Stream stream) {
  with_tile_shape(
      arguments.head_dim, family,
      [&]<int D, Family chosen>(std::integral_constant<int, D>, std::integral_constant<Family, chosen>) {
        const std::int64_t elements = DqSums<D>::elements(batch, arguments);
        runtime::set_zero(dq_sum, static_cast<std::size_t>(elements) * sizeof(float), stream);
        attention_backward_keys(arguments, batch, family, dq_sum, stream);
        enqueue(attention_finish_dq_kernel<D>, divide_up(elements / 16, finish_threads), finish_threads, 0,
                stream, arguments, dq_sum, elements / 16);
      });
}

}  // namespace

// Memory traffic: 4 d_h + 4 bytes a row in bf16 (reads dout and out, writes delta).
template <class T>
void attention_delta(const BackwardArguments<T>& arguments, int batch, Stream stream) {
  const std::int64_t rows = static_cast<std::int64_t>(batch) * arguments.queries * arguments.heads;
  const bool vectors =
      arguments.head_dim % Vector<T>::size == 0 && arguments.dout.aligned() && arguments.out.aligned();
  enqueue(vectors ? attention_delta_kernel<T, true> : attention_delta_kernel<T, false>,
          divide_up(rows, delta_threads / delta_lanes), delta_threads, 0, stream, arguments, rows);
}
template void attention_delta<float>(const BackwardArguments<float>&, int, Stream);
template void attention_delta<bf16>(const BackwardArguments<bf16>&, int, Stream);

// The sums of dq in any order. The form that runs depends on the alignment too: this is the largest of them.
std::size_t CudaDevice::workspace(const AttentionBackward& op) const {
  const int batch = static_cast<int>(op.q.shape[0]), head_dim = static_cast<int>(op.q.shape[3]);
  if (op.q.dtype != DType::bf16 || head_dim > 128 || op.deterministic || !can_add_dq(head_dim, family_))
    return 0;
  std::int64_t elements = 0;
  with_tile_shape(head_dim, family_, [&]<int D, class Chosen>(std::integral_constant<int, D>, Chosen) {
    elements = DqSums<D>::elements(batch, BackwardArguments<bf16>(op));
  });
  return static_cast<std::size_t>(elements) * sizeof(float);
}

void CudaDevice::launch(const AttentionBackward& op) {
  auto* dq_sum = static_cast<float*>(workspace_.take(op));
  if (op.dk.elements() == 0) return;
  const int batch = static_cast<int>(op.q.shape[0]);
  with_element_type(op.q.dtype, [&]<class T>(T) {
    const BackwardArguments<T> arguments(op);
    // Without queries the gradients of the keys are zeros.
    if (arguments.queries == 0) return attention_backward_ffma<T>(arguments, batch, stream_);
    attention_delta<T>(arguments, batch, stream_);
    if constexpr (std::is_same_v<T, bf16>)
      if (arguments.head_dim <= 128 && arguments.aligned()) {
        if (op.deterministic || !can_add_dq(arguments.head_dim, family_)) {
          // The pass over queries comes first, because it corrects delta.
          attention_backward_queries(arguments, batch, family_, stream_);
          return attention_backward_keys(arguments, batch, family_, nullptr, stream_);
        }
        return attention_backward_any_order(arguments, batch, family_, dq_sum, stream_);
      }
    attention_backward_ffma<T>(arguments, batch, stream_);
  });
}

}  // namespace goat::GOAT_TARGET
