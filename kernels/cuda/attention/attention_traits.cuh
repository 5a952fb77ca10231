// Tile shapes of the tensor-core attention kernels, and what each costs. There is one struct for each d_h and
// each family of architectures. dev/attention_cost.py predicts times from these figures.
// test/test_cuda_sass.py compares ptxas's report and the machine code with them.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

// The shared memory that a block may have decides the tile shapes: 163 KiB or more (sm_80, sm_90, ...), or 99
// KiB (sm_86, sm_89, sm_120).
enum class Family { large_shared, small_shared };

constexpr int shared_limit_of(Family family) { return (family == Family::large_shared ? 163 : 99) * 1024; }

// Whether the code for an architecture holds a family's kernels. If not, the kernels are compiled empty.
// `architecture` is 10 * compute capability as in __CUDA_ARCH__: 800 for sm_80. Code for sm_80 runs on sm_86
// too, and code compiled from its PTX runs on every later GPU, so code for sm_80 holds both families. Code
// that is `specific` to its architecture (sm_90a) does not need the small shapes. Code for GPUs with little
// shared memory does not need the large shapes.
constexpr bool is_compiled(Family family, int architecture, bool specific) {
  const bool little_shared = architecture == 860 || architecture == 890 || architecture / 100 == 12;
  return family == Family::large_shared ? !little_shared : little_shared || !specific;
}

#if !GOAT_SIMT && defined(__CUDA_ARCH__)
#if defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__) || \
    defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool specific_code = true;
#else
constexpr bool specific_code = false;
#endif
template <Family family>
constexpr bool compiled_for = is_compiled(family, __CUDA_ARCH__, specific_code);
#else
template <Family family>
constexpr bool compiled_for = true;
#endif

// The families in the code that was loaded for a GPU.
struct LoadedFamilies {
  bool large_shared, small_shared;
};

// The family whose kernels a GPU runs. `shared_limit`: bytes of shared memory that a block may have on this
// GPU. Throws std::runtime_error if no loaded family fits.
inline Family choose_family(std::size_t shared_limit, LoadedFamilies loaded) {
  const auto fits = [&](Family family) {
    return shared_limit >= static_cast<std::size_t>(shared_limit_of(family));
  };
  if (loaded.large_shared && fits(Family::large_shared)) return Family::large_shared;
  if (loaded.small_shared && fits(Family::small_shared)) return Family::small_shared;
  throw std::runtime_error(std::string("this binary has no attention kernels for a GPU with ") +
                           std::to_string(shared_limit) +
                           " bytes of shared memory a block: build for its own architecture");
}

// What the kernels add to scale <q, k>: nothing, the slope's term, or the key's bias and the slope's term, if
// there is a slope.
enum class Terms { none, slope, key_bias };

// Forward: a block owns `queries` rows, each warp 16 * row_tiles of them. The block walks over the keys,
// `keys` at a time. Shared memory: Q, then `stages` pairs of K and V tiles, then the terms of a tile's
// columns (with a key bias, of two tiles). O is staged in the place of Q before it is stored.
template <int D, Family family>
struct ForwardTraits;

template <int D, int query_rows, int key_rows, int warp_count, int stage_count, int blocks>
struct ForwardShape {
  static constexpr int head_dim = D, queries = query_rows, keys = key_rows, warps = warp_count,
                       stages = stage_count;
  static constexpr int threads = 32 * warps, row_tiles = queries / (16 * warps);
  static constexpr int shared_bytes = (queries + 2 * stages * keys) * D * 2 + 8 * keys;
  static constexpr int key_bias_bytes = 8 * keys;  // more of them with a key bias
  static constexpr int blocks_per_multiprocessor = blocks;
  static_assert(queries == 16 * warps * row_tiles && keys % 16 == 0);
};

// The comment of each shape states the accumulators (S and O) of a thread, row_tiles * (keys + D) / 2
// registers, and the shared memory of a block. A key bias adds 0.5 KiB, or 0.25 KiB with 32 keys a tile.

// 96 accumulators, 24.5 KiB
template <>
struct ForwardTraits<32, Family::large_shared> : ForwardShape<32, 128, 64, 4, 2, 2> {};
// 128 accumulators, 48.5 KiB
template <>
struct ForwardTraits<64, Family::large_shared> : ForwardShape<64, 128, 64, 4, 2, 2> {};
// 192 accumulators, 96.5 KiB
template <>
struct ForwardTraits<128, Family::large_shared> : ForwardShape<128, 128, 64, 4, 2, 1> {};
// 96 accumulators, 24.5 KiB
template <>
struct ForwardTraits<32, Family::small_shared> : ForwardShape<32, 128, 64, 4, 2, 2> {};
// 128 accumulators, 48.5 KiB
template <>
struct ForwardTraits<64, Family::small_shared> : ForwardShape<64, 128, 64, 4, 2, 2> {};
// 160 accumulators, 64.25 KiB
template <>
struct ForwardTraits<128, Family::small_shared> : ForwardShape<128, 128, 32, 4, 2, 1> {};

// Backward, the pass over keys: a block owns `keys` rows of K and V and walks over the queries, `queries` at
// a time. Its warps form a grid of key_warps (16 * key_tiles keys each) by query_warps (warp_queries queries
// each). Shared memory: K, V, two pairs of Q and dO tiles, (lse, delta) of two tiles of queries, and the
// terms of the keys. The form that adds up dQ has two tiles of dS^T in addition.
template <int D, int key_rows, int query_rows, int key_warp_count, int query_warp_count>
struct BackwardKeysShape {
  static constexpr int head_dim = D, keys = key_rows, queries = query_rows, key_warps = key_warp_count,
                       query_warps = query_warp_count;
  static constexpr int warps = key_warps * query_warps, threads = 32 * warps;
  static constexpr int key_tiles = keys / (16 * key_warps), warp_queries = queries / query_warps;
  static constexpr int tile_elements = (2 * keys + 4 * queries) * D;
  static constexpr int shared_bytes = tile_elements * 2 + 4 * queries * 4 + 8 * keys,
                       ds_bytes = keys * queries * 2;
  // registers of a thread: S^T, dP^T, dK, dV
  static constexpr int accumulators = key_tiles * (warp_queries + D);
  static_assert(keys == 16 * key_warps * key_tiles && warp_queries % 16 == 0 && threads >= queries);
  // The sums of the two query_warps are added through the memory of the tiles.
  static_assert(query_warps == 1 || (query_warps == 2 && keys <= 2 * queries));
};

// Backward, the pass over queries: a block owns `queries` rows of Q and dO, each warp 16 * row_tiles of them.
// The block walks over the keys, `keys` at a time. Shared memory: Q, dO, two pairs of K and V tiles, and
// (lse, delta, sum of dS) of the rows. With a key bias also the terms of the columns of two tiles.
template <int D, int query_rows, int key_rows, int warp_count, int blocks>
struct BackwardQueriesShape {
  static constexpr int head_dim = D, queries = query_rows, keys = key_rows, warps = warp_count,
                       threads = 32 * warps;
  static constexpr int row_tiles = queries / (16 * warps), blocks_per_multiprocessor = blocks;
  static constexpr int tile_elements = (2 * queries + 4 * keys) * D,
                       shared_bytes = tile_elements * 2 + 3 * queries * 4, key_bias_bytes = 16 * keys;
  static constexpr int accumulators = row_tiles * (keys + D / 2);  // registers of a thread: S, dP, dQ
  static_assert(queries == 16 * warps * row_tiles && keys % 16 == 0);
};

// 8 warps, one block on a multiprocessor, up to 255 registers. The default form spills no bytes (ptxas 13.0),
// except for D = 128 with a key bias on sm_80: 4. The form with dQ spills none either, except for D = 128
// with the prior (at most 64 bytes) and for D >= 64 with a key bias (at most 116). Forms for heads that share
// keys spill up to 140 bytes.
template <int D, Family family>
struct BackwardKeysTraits;
// 128 accumulators, 34 KiB (66 KiB with dQ)
template <Family family>
struct BackwardKeysTraits<32, family> : BackwardKeysShape<32, 128, 64, 4, 2> {};
// 192 accumulators, 66 KiB (98 KiB with dQ)
template <Family family>
struct BackwardKeysTraits<64, family> : BackwardKeysShape<64, 128, 64, 4, 2> {};
// 192 accumulators, 130 KiB (162 KiB with dQ)
template <>
struct BackwardKeysTraits<128, Family::large_shared> : BackwardKeysShape<128, 128, 64, 8, 1> {};
// 160 accumulators, 97.5 KiB (113.5 KiB with dQ, which is too much)
template <>
struct BackwardKeysTraits<128, Family::small_shared> : BackwardKeysShape<128, 64, 64, 4, 2> {};

// Up to 255 registers, no spills (with a key bias for D = 64: 28 bytes). A key bias adds 1 KiB, or 0.5 KiB
// with 32 keys a tile.
template <int D, Family family>
struct BackwardQueriesTraits;
// 160 accumulators, 33 KiB
template <Family family>
struct BackwardQueriesTraits<32, family> : BackwardQueriesShape<32, 128, 64, 4, 2> {};
// 192 accumulators, 65 KiB
template <>
struct BackwardQueriesTraits<64, Family::large_shared> : BackwardQueriesShape<64, 128, 64, 4, 2> {};
// 128 accumulators, 49 KiB
template <>
struct BackwardQueriesTraits<64, Family::small_shared> : BackwardQueriesShape<64, 128, 32, 4, 1> {};
// 192 accumulators, 97 KiB
template <Family family>
struct BackwardQueriesTraits<128, family> : BackwardQueriesShape<128, 128, 32, 4, 1> {};

// Whether the pass over keys has a form that adds up dQ too. This form needs dS^T in shared memory.
template <int D, Family family>
constexpr bool has_dq_form = BackwardKeysTraits<D, family>::shared_bytes +
                                 2 * BackwardKeysTraits<D, family>::ds_bytes <=
                             shared_limit_of(family);

// The dynamic shared memory of the forward pass and the pass over queries.
template <class Shape, Terms kind>
constexpr int shared_bytes_with = Shape::shared_bytes + (kind == Terms::key_bias ? Shape::key_bias_bytes : 0);

// The largest dynamic shared memory of a family's kernels, in bytes.
template <Family family, int... D>
constexpr int most_shared_bytes =
    std::max({shared_bytes_with<ForwardTraits<D, family>, Terms::key_bias>...,
              shared_bytes_with<BackwardQueriesTraits<D, family>, Terms::key_bias>...,
              (BackwardKeysTraits<D, family>::shared_bytes +
               (has_dq_form<D, family> ? 2 * BackwardKeysTraits<D, family>::ds_bytes : 0))...});
static_assert(most_shared_bytes<Family::large_shared, 32, 64, 128> <= shared_limit_of(Family::large_shared));
static_assert(most_shared_bytes<Family::small_shared, 32, 64, 128> <= shared_limit_of(Family::small_shared));

}  // namespace goat::GOAT_TARGET
