// Attention, forward, on tensor cores: softmax(scale q k^T + slope (j - i') + key_bias_j - key_bias_i') v in
// one pass over the keys (Dao 2023, FlashAttention-2). Operands are bf16; logits, softmax and accumulators
// are fp32. The prior's lanes are ordinary coordinates of q and k. The slope and the key bias are added to
// the fp32 logits.
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
// With a key bias the table differs from tile to tile. One thread a key fetches the bias of the next tile in
// double, subtracts the bias at the origin (KeyTerms) and stores the term in the table of the next tile. The
// slope's term is in the same number. Logits are then relative to the origin from the beginning, so that
// maxima need no shift. This costs one 8-byte load and two double instructions a key and block, and nothing a
// logit.
//
// Heads that share a head of k and v are neighbours in the grid, so that they share its tiles in L2.
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
#include "kernels/cuda/attention/attention_fragments.cuh"
#include "kernels/cuda/attention/attention_traits.cuh"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/vector.cuh"

namespace goat::GOAT_TARGET {

namespace {

// A warp's part of S or P.
template <class Shape>
using Scores = Fragments<Shape::row_tiles, Shape::keys / 8>;

// The online softmax of a thread's rows 8 r, counted from its first.
template <class Shape>
struct SoftmaxRows {
  static constexpr int count = 2 * Shape::row_tiles;
  Fragments<Shape::row_tiles, Shape::head_dim / 8> out = {};
  // The maximum of the logits so far, or slightly less than it; relative to the origin.
  float maximum[count];
  // This thread's part of sum e^(scale (logit - maximum)).
  float sum[count] = {};

  __device__ __forceinline__ SoftmaxRows() {
    unrolled<count>([&](int r) { maximum[r] = -INFINITY; });
  }
};

// S = -infinity for keys at or beyond a row's limit. Row 8 r of the thread has the limit first_limit + 8 r if
// causal, but at most all_keys. `first_key` is the thread's first key.
template <int row_tiles, int column_tiles>
__device__ __forceinline__ void mask(Fragments<row_tiles, column_tiles>& s, int first_key, int first_limit,
                                     int all_keys, bool causal) {
  unrolled<2 * row_tiles>([&](int r) {
    const int limit = causal ? min(first_limit + 8 * r, all_keys) : all_keys;
    for_each_in_row(s, r, [&](float& value, int column) {
      if (first_key + column >= limit) value = -INFINITY;
    });
  });
}

// A row that has seen no key yet has the maximum -inf. Its terms must become 0, not NaN.
template <bool masked>
__device__ __forceinline__ float finite(float maximum) {
  return masked && maximum == -INFINITY ? 0.0f : maximum;
}

// If the maximum of one of the warp's rows has risen far, raises the maxima of all its rows and rescales the
// sums so far. `shift` converts the tile's logits to the origin (0 without a slope).
template <class Shape, bool masked, bool has_shift>
__device__ __forceinline__ void raise_maxima(SoftmaxRows<Shape>& rows, const Scores<Shape>& s, float factor,
                                             float shift) {
  float maximum[SoftmaxRows<Shape>::count];
  bool far = false;
  unrolled<SoftmaxRows<Shape>::count>([&](int r) {
    const float largest = maximum_of_lanes(maximum_of_row(s, r));
    maximum[r] = fmaxf(rows.maximum[r], has_shift ? largest + shift : largest);
    far |= (maximum[r] - rows.maximum[r]) * factor > 8;
  });
  if (!__any_sync(all_lanes, far)) return;
  unrolled<SoftmaxRows<Shape>::count>([&](int r) {
    const float rescale = exp2_approximate((rows.maximum[r] - finite<masked>(maximum[r])) * factor);
    rows.maximum[r] = maximum[r];
    rows.sum[r] *= rescale;
    for_each_in_row(rows.out, r, [&](float& value, int) { value *= rescale; });
  });
}

// S becomes P = 2^(factor (S - maximum)), and the sums grow by P.
template <class Shape, bool masked, bool has_shift>
__device__ __forceinline__ void exponentiate(Scores<Shape>& s, SoftmaxRows<Shape>& rows, float factor,
                                             float shift) {
  unrolled<SoftmaxRows<Shape>::count>([&](int r) {
    const float maximum = finite<masked>(rows.maximum[r]),
                base = (has_shift ? maximum - shift : maximum) * factor;
    float sum = rows.sum[r];
    for_each_in_row(s, r, [&](float& value, int) {
      value = exp2_approximate(fmaf(value, factor, -base));
      sum += value;
    });
    rows.sum[r] = sum;
  });
}

// A block's place in the grid (blocks of queries, H, B). The last block of queries comes first, because
// it sees most keys.
template <class Shape>
struct Place {
  int sequence, head, first_query;
  __device__ __forceinline__ Place()
      : sequence(opaque(static_cast<int>(blockIdx.z))),
        head(opaque(static_cast<int>(blockIdx.y))),
        first_query((static_cast<int>(gridDim.x) - 1 - opaque(static_cast<int>(blockIdx.x))) *
                    Shape::queries) {}
};

// The block's shared memory.
template <class Shape>
struct ForwardMemory {
  static constexpr int D = Shape::head_dim;
  bf16* const q = dynamic_shared<bf16>();
  bf16* const key_tiles = q + Shape::queries * D;  // stages x (K, V)
  float4* const terms = reinterpret_cast<float4*>(key_tiles + 2 * Shape::stages * Shape::keys * D);

  __device__ __forceinline__ bf16* k(int step) const {
    return key_tiles + (step % Shape::stages) * 2 * Shape::keys * D;
  }
  __device__ __forceinline__ bf16* v(int step) const { return k(step) + Shape::keys * D; }
  // The terms of a step's columns. With a key bias they are stored by the parity of the step.
  template <Terms kind>
  __device__ __forceinline__ float4* column_terms(int step) const {
    return kind == Terms::key_bias ? terms + step % 2 * (Shape::keys / 2) : terms;
  }
};

// What a block owns, and the walk over the keys. Every query sees all keys of the steps [0, full).
template <int D, Family family, Terms kind>
struct ForwardBlock {
  static constexpr bool has_slope = kind == Terms::slope, has_key_bias = kind == Terms::key_bias;
  using Shape = ForwardTraits<D, family>;
  using Lanes = typename Tile<D>::Lanes;
  static constexpr int keys = Shape::keys, queries = Shape::queries;

  const ForwardArguments<bf16>& arguments;
  const ForwardMemory<Shape> memory;
  const int lane, warp_row;
  const Place<Shape> place;
  const int origin;  // position of the first query
  const int seen;    // by the block's last query: the number of keys
  const int steps, full;
  const HeadRows<const bf16> k, v;
  const float slope, factor;  // slope / scale and scale log2(e)

  __device__ __forceinline__ explicit ForwardBlock(const ForwardArguments<bf16>& arguments_)
      : arguments(arguments_),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp_row(static_cast<int>(threadIdx.x / 32) * 16 * Shape::row_tiles),
        origin(place.first_query + arguments.keys - arguments.queries),
        seen(arguments.causal ? origin + min(queries, arguments.queries - place.first_query)
                              : arguments.keys),
        steps((seen + keys - 1) / keys),
        full((arguments.causal ? min(origin + 1, seen) : seen) / keys),
        k(arguments.k.head(place.sequence, arguments.key_head(place.head))),
        v(arguments.v.head(place.sequence, arguments.key_head(place.head))),
        slope(has_slope ? arguments.slope[place.head] / arguments.scale : 0.0f),
        factor(arguments.scale * log2_e) {}

  // The whole pass.
  __device__ __forceinline__ void walk(SoftmaxRows<Shape>& rows) const {
    Tile<D>::template load<queries, Shape::threads, true>(
        memory.q, arguments.q.head(place.sequence, place.head), place.first_query, arguments.queries,
        arguments.head_dim);
    load_keys<true>(steps - 1);  // only this tile can reach beyond the keys
    if constexpr (has_slope) store_column_terms<keys>(memory.terms, slope);
    if constexpr (has_key_bias) store_terms(steps - 1, fetch_bias(steps - 1));
    const int step = count_down(steps - 1, full, [&](int n) { take_keys<true>(n, rows); });
    count_down(step, 0, [&](int n) { take_keys<false>(n, rows); });
  }

  // One step: S = Q K^T + terms, P = 2^(factor (S - maximum)), out += P V. It also starts the copies
  // for the step after it (step - 1).
  template <bool masked>
  __device__ __forceinline__ void take_keys(int step, SoftmaxRows<Shape>& rows) const {
    copy_async_wait<0>();
    __syncthreads();  // tile `step` has come, and no thread reads the tile that the next copy overwrites
    if (step > 0) load_keys<false>(step - 1);
    double next_bias = 0;
    if (has_key_bias && step > 0) next_bias = fetch_bias(step - 1);

    const Lanes lanes(opaque(lane));
    Scores<Shape> s = {};
    if constexpr (kind != Terms::none) begin_at_column_terms(s, memory.template column_terms<kind>(step));
    add_product_of_rows<D>(s, memory.q, opaque(warp_row), memory.k(step), 0, lanes);
    if constexpr (masked)
      mask(s, step * keys + 2 * (lane % 4), origin + warp_row + lane / 4 + 1, arguments.keys,
           arguments.causal);
    const float shift = slope_now() * static_cast<float>(step * keys - origin);
    raise_maxima<Shape, masked, has_slope>(rows, s, factor, shift);
    exponentiate<Shape, masked, has_slope>(s, rows, factor, shift);
    if (has_key_bias && step > 0) store_terms(step - 1, next_bias);
    add_product<D>(rows.out, s, memory.v(step), 0, lanes);
  }

  // Starts the copies of a step's K and V. `checked`: some of its keys may be absent.
  template <bool checked>
  __device__ __forceinline__ void load_keys(int step) const {
    constexpr bool again = forward_needs_new_addresses<D, family>;
    Tile<D>::template load<keys, Shape::threads, checked>(
        memory.k(step), again ? arguments.k.head(sequence_now(), arguments.key_head(head_now())) : k,
        step * keys, arguments.keys, arguments.head_dim);
    Tile<D>::template load<keys, Shape::threads, checked>(
        memory.v(step), again ? arguments.v.head(sequence_now(), arguments.key_head(head_now())) : v,
        step * keys, arguments.keys, arguments.head_dim);
    copy_async_commit();
  }

  // This thread's key bias of a step, on its way to the step's terms.
  __device__ __forceinline__ double fetch_bias(int step) const {
    return fetch_key_bias<keys>(arguments.key_bias.keys(sequence_now(), head_now()), step * keys,
                                arguments.keys);
  }
  __device__ __forceinline__ void store_terms(int step, double bias) const {
    store_column_term<keys>(memory.template column_terms<kind>(step),
                            key_terms(arguments, sequence_now(), head_now(), origin), step * keys, bias,
                            arguments.inverse_scale);
  }

  // `slope`, read from the table, whose second number it is, so that it needs no register.
  __device__ __forceinline__ float slope_now() const { return has_slope ? memory.terms[0].y : 0.0f; }
};

// Divides by the sums and stores out and lse. `out` goes through shared memory for 16-byte stores.
template <class Shape, Terms kind>
__device__ __forceinline__ void store_rows(const ForwardArguments<bf16>& arguments, SoftmaxRows<Shape>& rows,
                                           bf16* tile, float factor) {
  using T = Tile<Shape::head_dim>;
  const int thread = thread_now(), lane = thread % 32, warp_row = thread / 32 * 16 * Shape::row_tiles;
  const Place<Shape> place;
  const float slope = kind == Terms::slope ? arguments.slope[place.head] : 0.0f;
  const auto row_term = [&](int row) {
    if constexpr (kind == Terms::key_bias) {
      const int origin = place.first_query + arguments.keys - arguments.queries;
      return key_terms(arguments, place.sequence, place.head, origin)
          .at(origin + row, arguments.key_bias.at(place.sequence, place.head, origin + row));
    }
    return slope * static_cast<float>(row);
  };
  __syncwarp();  // this warp's reads of its rows of Q must be complete
  float* lse = arguments.lse +
               (static_cast<std::int64_t>(place.sequence) * arguments.heads + place.head) * arguments.queries;
  unrolled<SoftmaxRows<Shape>::count>([&](int r) {
    const float sum = sum_of_lanes(rows.sum[r]);
    const int row = warp_row + 8 * r + lane / 4, query = place.first_query + row;
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int d = 0; d < T::chunks; ++d) {
      const float* o = &rows.out[r / 2][d][2 * (r % 2)];
      *reinterpret_cast<std::uint32_t*>(T::at(tile, row, d) + 2 * (lane % 4)) =
          pack_bf16(o[0] * inverse, o[1] * inverse);
    }
    if (lane % 4 == 0 && query < arguments.queries)
      lse[query] = fmaf(ln_2, fmaf(rows.maximum[r], factor, log2f(sum)), -row_term(row));
  });
  __syncwarp();  // no other warp uses these rows of the tile
  const HeadRows<bf16> out = arguments.out.head(place.sequence, place.head);
#pragma unroll
  for (int i = lane; i < 16 * Shape::row_tiles * T::chunks; i += 32) {
    const int row = warp_row + i / T::chunks, query = place.first_query + row, chunk = i % T::chunks;
    if (query < arguments.queries && chunk * 8 < arguments.head_dim)
      Vector<bf16>::load(T::at(tile, row, chunk)).store(out.row(query) + chunk * 8);
  }
}

template <int D, Family family, Terms kind>
__global__ void __launch_bounds__(ForwardTraits<D, family>::threads,
                                  ForwardTraits<D, family>::blocks_per_multiprocessor)
    attention_forward_kernel(const ForwardArguments<bf16> arguments) {
  if constexpr (compiled_for<family>) {
    using Shape = ForwardTraits<D, family>;
    state_dynamic_shared<shared_bytes_with<Shape, kind>>();
    const ForwardBlock<D, family, kind> block(arguments);
    SoftmaxRows<Shape> rows;
    block.walk(rows);
    store_rows<Shape, kind>(arguments, rows, block.memory.q, block.factor);
  }
}

template <int D, Family family>
void launch_forward(const ForwardArguments<bf16>& arguments, int batch, Stream stream) {
  using Shape = ForwardTraits<D, family>;
  with_terms(arguments, [&]<Terms kind>(std::integral_constant<Terms, kind>) {
    for_each_part(batch, [&](int first, int sequences) {
      const Grid grid(divide_up(arguments.queries, Shape::queries), arguments.heads, sequences);
      enqueue(attention_forward_kernel<D, family, kind>, grid, Shape::threads, shared_bytes_with<Shape, kind>,
              stream, arguments.after(first));
    });
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
  return decode_scratch_bytes(op);
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
