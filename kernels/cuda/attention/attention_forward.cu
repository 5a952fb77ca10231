// Attention, forward, on tensor cores: softmax(scale q k^T + slope (j - i')) v in one pass over the keys (Dao
// 2023, FlashAttention-2). Operands are bf16; logits, softmax and accumulators are fp32. The prior's lanes
// are ordinary coordinates of q and k. The slope is added to the fp32 logits.
//
// A block owns `queries` rows of one head, each warp 16 * row_tiles of them. It walks over tiles of keys from
// the diagonal back to key 0. The tiles that need a mask come first; the others are computed without one. K
// and V of the next tile are copied while the block computes this one.
//
// Logits are kept unscaled (z / scale) and relative to the tile. The accumulators of Q K^T begin at
// (slope / scale) (j - j0), where j0 is the tile's first key. A thread reads these numbers from a small table
// in 16-byte reads, so the slope costs no instruction for each logit. The factor scale log2(e) is applied
// within the exponential. A row's maximum is kept relative to the origin, which is the position of the
// block's first query. Its difference from a maximum relative to the tile is (slope / scale) (j0 - origin).
// The term slope (i' - origin) is constant in a row. It cancels in the softmax and is subtracted from the
// log-sum-exp at the end.
//
// The base of a row's softmax need not be its maximum; any number near the maximum serves. The sums so far
// are rescaled only when a maximum has risen so far that exponentials would exceed 2^8. After a warp's first
// tile this seldom happens.
//
// Memory traffic of a block: q and out once, lse once, k and v once for each block of queries that sees them.
// FLOPs: 4 d_h a (query, key) pair. A warp's step of `keys` keys, with t = row_tiles = 2:
//   mma           t (keys/8) (D/16)  +  t (keys/16) (D/8)            S, out
//   ldmatrix.x4   (t + keys/16) (D/16)  +  (keys/16) (D/16)
//   copies        4 keys D bytes a block; 16-byte cp.async: keys D / (4 threads) a thread
// The kernel contains the step twice (with and without a mask), the copies of Q (queries D / (8 threads)) and
// the copies of the first K and V. test/test_cuda_sass.py counts these instructions in the machine code.
//   D = 32: HMMA 128, LDSM 40, LDGSTS 16
//   D = 64: HMMA 256, LDSM 80, LDGSTS 32
//   D = 128, large_shared: HMMA 512, LDSM 160, LDGSTS 64
//   D = 128, small_shared: HMMA 256, LDSM 96, LDGSTS 40
#include <climits>
#include <stdexcept>

#include "kernels/cuda/attention/attention_ffma.cuh"
#include "kernels/cuda/attention/attention_tile.cuh"
#include "kernels/cuda/attention/attention_traits.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

namespace {

// The state of a thread's 2 * row_tiles rows: row 2 t + half is row 16 t + 8 half + lane/4 of the warp.
template <class Traits>
struct RowState {
  float out[Traits::row_tiles][Traits::head_dim / 8][4] = {};
  // The maximum of the logits so far, or slightly less than it; relative to the origin.
  float maximum[2 * Traits::row_tiles];
  // This thread's part of sum e^(scale (logit - maximum)).
  float sum[2 * Traits::row_tiles] = {};
};

template <class Traits>
using Logits = float[Traits::row_tiles][Traits::keys / 8][4];

// logits += Q K^T for the warp's rows.
template <class Traits>
__device__ __forceinline__ void multiply_keys(Logits<Traits>& logits, bf16* q_tile, bf16* k_tile,
                                              int warp_row, typename Tile<Traits::head_dim>::Lanes lanes) {
  using T = Tile<Traits::head_dim>;
#pragma unroll
  for (int d = 0; d < T::chunks; d += 2) {
    std::uint32_t q[Traits::row_tiles][4];
#pragma unroll
    for (int t = 0; t < Traits::row_tiles; ++t) T::a_fragment(q[t], q_tile, warp_row + 16 * t, d, lanes);
#pragma unroll
    for (int n = 0; n < Traits::keys / 16; ++n) {
      std::uint32_t k[4];
      T::b_fragments(k, k_tile, 16 * n, d, lanes);
#pragma unroll
      for (int t = 0; t < Traits::row_tiles; ++t) {
        mma_bf16(logits[t][2 * n], q[t], k[0], k[1]);
        mma_bf16(logits[t][2 * n + 1], q[t], k[2], k[3]);
      }
    }
  }
}

// out += P V. P is in registers, in the layout of the accumulators.
template <class Traits>
__device__ __forceinline__ void multiply_values(RowState<Traits>& rows, const Logits<Traits>& p, bf16* v_tile,
                                                typename Tile<Traits::head_dim>::Lanes lanes) {
  using T = Tile<Traits::head_dim>;
#pragma unroll
  for (int n = 0; n < Traits::keys / 16; ++n) {
    std::uint32_t a[Traits::row_tiles][4];
#pragma unroll
    for (int t = 0; t < Traits::row_tiles; ++t)
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const float* pair = &p[t][2 * n + part / 2][2 * (part % 2)];
        a[t][part] = pack_bf16(pair[0], pair[1]);
      }
#pragma unroll
    for (int d = 0; d < T::chunks; d += 2) {
      std::uint32_t v[4];
      T::b_fragments_transposed(v, v_tile, 16 * n, d, lanes);
#pragma unroll
      for (int t = 0; t < Traits::row_tiles; ++t) {
        mma_bf16(rows.out[t][d], a[t], v[0], v[1]);
        mma_bf16(rows.out[t][d + 1], a[t], v[2], v[3]);
      }
    }
  }
}

// Writes -inf where key (key + column) is at or beyond the row's limit. Row 16 t + 8 half + lane/4 of the
// warp has the limit first_limit + 16 t + 8 half if causal, but at most all_keys.
template <class Traits>
__device__ __forceinline__ void mask(Logits<Traits>& logits, int key, int first_limit, int all_keys,
                                     bool causal) {
#pragma unroll
  for (int t = 0; t < Traits::row_tiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int limit = causal ? min(first_limit + 16 * t + 8 * half, all_keys) : all_keys;
#pragma unroll
      for (int n = 0; n < Traits::keys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (key + 8 * n + i >= limit) logits[t][n][2 * half + i] = -INFINITY;
    }
}

// A row that has seen no key yet has the maximum -inf. Its terms must become 0, not NaN.
template <bool masked>
__device__ __forceinline__ float finite(float maximum) {
  return masked && maximum == -INFINITY ? 0.0f : maximum;
}

// If the maximum of one of the warp's rows has risen far, raises the maxima of all its rows and rescales the
// sums so far. `shift` converts the tile's logits to the origin (0 without a slope).
template <class Traits, bool masked, bool has_slope>
__device__ __forceinline__ void raise_maxima(const Logits<Traits>& logits, RowState<Traits>& rows,
                                             float factor, float shift) {
  float maximum[2 * Traits::row_tiles];
  bool far = false;
#pragma unroll
  for (int row = 0; row < 2 * Traits::row_tiles; ++row) {
    const auto& tile = logits[row / 2];
    const int half = 2 * (row % 2);
    float largest = fmaxf(tile[0][half], tile[0][half + 1]);
#pragma unroll
    for (int n = 1; n < Traits::keys / 8; ++n)
      largest = fmaxf(largest, fmaxf(tile[n][half], tile[n][half + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    maximum[row] = fmaxf(rows.maximum[row], has_slope ? largest + shift : largest);
    far |= (maximum[row] - rows.maximum[row]) * factor > 8;
  }
  if (!__any_sync(0xFFFFFFFFu, far)) return;
#pragma unroll
  for (int row = 0; row < 2 * Traits::row_tiles; ++row) {
    const float rescale = exp2_approximate((rows.maximum[row] - finite<masked>(maximum[row])) * factor);
    rows.maximum[row] = maximum[row];
    rows.sum[row] *= rescale;
    float(&out)[Traits::head_dim / 8][4] = rows.out[row / 2];
#pragma unroll
    for (int d = 0; d < Traits::head_dim / 8; ++d) {
      out[d][2 * (row % 2)] *= rescale;
      out[d][2 * (row % 2) + 1] *= rescale;
    }
  }
}

// A step of the online softmax: the logits become 2^(factor (logit - maximum)).
template <class Traits, bool masked, bool has_slope>
__device__ __forceinline__ void exponentiate(Logits<Traits>& logits, RowState<Traits>& rows, float factor,
                                             float shift) {
  raise_maxima<Traits, masked, has_slope>(logits, rows, factor, shift);
#pragma unroll
  for (int row = 0; row < 2 * Traits::row_tiles; ++row) {
    auto& tile = logits[row / 2];
    const int half = 2 * (row % 2);
    const float maximum = finite<masked>(rows.maximum[row]),
                base = (has_slope ? maximum - shift : maximum) * factor;
    float sum = rows.sum[row];
#pragma unroll
    for (int n = 0; n < Traits::keys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float p = exp2_approximate(fmaf(tile[n][half + i], factor, -base));
        tile[n][half + i] = p;
        sum += p;
      }
    rows.sum[row] = sum;
  }
}

// A block's place in the grid (blocks of queries, H, B). The last block of queries comes first, because
// it sees most keys.
template <class Traits>
struct Place {
  int sequence, head, first_query;
  __device__ __forceinline__ Place()
      : sequence(opaque(static_cast<int>(blockIdx.z))),
        head(opaque(static_cast<int>(blockIdx.y))),
        first_query((static_cast<int>(gridDim.x) - 1 - opaque(static_cast<int>(blockIdx.x))) *
                    Traits::queries) {}
};

// Divides by the sums and stores out and lse. `out` goes through shared memory for 16-byte stores.
template <class Traits, bool has_slope>
__device__ __forceinline__ void store_rows(const ForwardArguments<bf16>& arguments, RowState<Traits>& rows,
                                           bf16* tile, float factor) {
  using T = Tile<Traits::head_dim>;
  const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % 32,
            warp_row = thread / 32 * 16 * Traits::row_tiles;
  const Place<Traits> place;
  const float slope = has_slope ? arguments.slope[place.head] : 0.0f;
  __syncwarp();  // this warp's reads of its rows of Q must be complete
  float* lse = arguments.lse +
               (static_cast<std::int64_t>(place.sequence) * arguments.heads + place.head) * arguments.queries;
#pragma unroll
  for (int row = 0; row < 2 * Traits::row_tiles; ++row) {
    float sum = rows.sum[row];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const int r = warp_row + 8 * row + lane / 4, query = place.first_query + r;
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int d = 0; d < T::chunks; ++d) {
      const float* o = &rows.out[row / 2][d][2 * (row % 2)];
      *reinterpret_cast<std::uint32_t*>(T::at(tile, r, d) + 2 * (lane % 4)) =
          pack_bf16(o[0] * inverse, o[1] * inverse);
    }
    if (lane % 4 == 0 && query < arguments.queries)
      lse[query] = fmaf(ln_2, fmaf(rows.maximum[row], factor, log2f(sum)), -slope * static_cast<float>(r));
  }
  __syncwarp();  // no other warp uses these rows of the tile
  bf16* out = arguments.out.rows(place.sequence, place.head);
#pragma unroll
  for (int i = lane; i < 16 * Traits::row_tiles * T::chunks; i += 32) {
    const int r = warp_row + i / T::chunks, chunk = i % T::chunks;
    if (place.first_query + r < arguments.queries && chunk * 8 < arguments.head_dim)
      Vector<bf16>::load(T::at(tile, r, chunk))
          .store(out + (place.first_query + r) * arguments.out.row_stride + chunk * 8);
  }
}

template <int D, Family family, bool has_slope>
__global__ void __launch_bounds__(ForwardTraits<D, family>::threads,
                                  ForwardTraits<D, family>::blocks_per_multiprocessor)
    attention_forward_kernel(const ForwardArguments<bf16> arguments) {
  if constexpr (compiled_for<family>) {
    using Traits = ForwardTraits<D, family>;
    using T = Tile<D>;
    constexpr int keys = Traits::keys;
    state_dynamic_shared<Traits::shared_bytes>();
    bf16* const q_tile = dynamic_shared<bf16>();
    bf16* const kv_tiles = q_tile + Traits::queries * D;  // stages x (K, V)
    float4* const slope_terms = reinterpret_cast<float4*>(kv_tiles + 2 * Traits::stages * keys * D);

    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16 * Traits::row_tiles;
    const auto [sequence, head, first_query] = Place<Traits>();
    const int origin = first_query + arguments.keys - arguments.queries;  // position of the first query
    const int last_query = min(first_query + Traits::queries, arguments.queries) - 1;
    const int seen = arguments.causal ? last_query + arguments.keys - arguments.queries + 1 : arguments.keys;
    const int steps = (seen + keys - 1) / keys;
    // Every query sees all keys of the tiles [0, full).
    const int full = (arguments.causal ? min(origin + 1, seen) : seen) / keys;
    const bf16 *k = arguments.k.rows(sequence, head), *v = arguments.v.rows(sequence, head);

    const auto load = [&]<bool checked>(int step, std::bool_constant<checked>) {
      bf16* tiles = kv_tiles + (step % Traits::stages) * 2 * keys * D;
      T::template load<keys, Traits::threads, checked>(tiles, k, arguments.k.row_stride, step * keys,
                                                       arguments.keys, arguments.head_dim);
      T::template load<keys, Traits::threads, checked>(tiles + keys * D, v, arguments.v.row_stride,
                                                       step * keys, arguments.keys, arguments.head_dim);
      copy_async_commit();
    };
    const float slope = has_slope ? arguments.slope[head] / arguments.scale : 0.0f,
                factor = arguments.scale * log2_e;
    RowState<Traits> rows;
#pragma unroll
    for (float& maximum : rows.maximum) maximum = -INFINITY;

    const auto compute = [&]<bool masked>(int step, std::bool_constant<masked>) {
      copy_async_wait<0>();
      __syncthreads();  // tile `step` has come, and no thread reads the tile that the next copy overwrites
      if (step > 0) load(step - 1, std::false_type{});
      bf16* tiles = kv_tiles + (step % Traits::stages) * 2 * keys * D;
      const typename T::Lanes lanes(opaque(lane));
      Logits<Traits> logits = {};
      if constexpr (has_slope) begin_at_column_terms(logits, slope_terms);
      multiply_keys<Traits>(logits, q_tile, tiles, opaque(warp_row), lanes);
      const int key = step * keys + 2 * (lane % 4);
      if constexpr (masked)
        mask<Traits>(logits, key, origin + warp_row + lane / 4 + 1, arguments.keys, arguments.causal);
      exponentiate<Traits, masked, has_slope>(logits, rows, factor,
                                              slope * static_cast<float>(step * keys - origin));
      multiply_values<Traits>(rows, logits, tiles + keys * D, lanes);
    };

    T::template load<Traits::queries, Traits::threads, true>(q_tile, arguments.q.rows(sequence, head),
                                                             arguments.q.row_stride, first_query,
                                                             arguments.queries, arguments.head_dim);
    load(steps - 1, std::true_type{});  // only this tile can reach beyond the keys
    if constexpr (has_slope) store_column_terms<keys>(slope_terms, slope);
    int step = steps - 1;
#pragma unroll 1
    for (; step >= full; --step) compute(step, std::true_type{});
#pragma unroll 1
    for (; step >= 0; --step) compute(step, std::false_type{});
    store_rows<Traits, has_slope>(arguments, rows, q_tile, factor);
  }
}

template <int D, Family family>
void launch_forward(const ForwardArguments<bf16>& arguments, int batch, Stream stream) {
  using Traits = ForwardTraits<D, family>;
  const auto kernel = arguments.slope ? attention_forward_kernel<D, family, true>
                                      : attention_forward_kernel<D, family, false>;
  for_each_part(batch, [&](int first, int sequences) {
    const Grid grid(divide_up(arguments.queries, Traits::queries), arguments.heads, sequences);
    enqueue(kernel, grid, Traits::threads, Traits::shared_bytes, stream, arguments.after(first));
  });
}

template <int D>
void launch_forward(Family family, const ForwardArguments<bf16>& arguments, int batch, Stream stream) {
  if (family == Family::large_shared)
    launch_forward<D, Family::large_shared>(arguments, batch, stream);
  else
    launch_forward<D, Family::small_shared>(arguments, batch, stream);
}

}  // namespace

namespace {
bool takes_decode_form(const AttentionForward& op) {
  return op.out.elements() > 0 && op.q.shape[1] <= decode_queries && op.k.shape[1] >= decode_keys;
}
}  // namespace

std::size_t CudaDevice::workspace(const AttentionForward& op) const {
  if (!takes_decode_form(op)) return 0;
  return decode_scratch_bytes(static_cast<int>(op.q.shape[0]), static_cast<int>(op.q.shape[2]),
                              static_cast<int>(op.q.shape[1]), static_cast<int>(op.k.shape[1]),
                              static_cast<int>(op.q.shape[3]));
}

void CudaDevice::launch(const AttentionForward& op) {
  if (op.out.elements() == 0) return;
  const int batch = static_cast<int>(op.q.shape[0]);
  with_element_type(op.q.dtype, [&]<class T>(T) {
    const ForwardArguments<T> arguments(op);
    if (takes_decode_form(op)) return attention_decode<T>(arguments, batch, workspace_.take(op), stream_);
    if constexpr (std::is_same_v<T, bf16>)
      if (arguments.head_dim <= 128 && arguments.aligned()) {
        if (arguments.head_dim <= 32) return launch_forward<32>(family_, arguments, batch, stream_);
        if (arguments.head_dim <= 64) return launch_forward<64>(family_, arguments, batch, stream_);
        return launch_forward<128>(family_, arguments, batch, stream_);
      }
    attention_forward_ffma<T>(arguments, batch, stream_);
  });
}

}  // namespace goat::GOAT_TARGET
