// Tile shapes of the tensor-core attention kernels: one struct for each d_h and family of architectures, with
// what it costs. dev/attention_cost.py predicts times from these figures, and test/test_cuda_sass.py holds
// ptxas's report and the machine code against them.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cuda/target.cuh"

namespace goat::GOAT_TARGET {

// Shapes by the shared memory that a block may have: 163 KiB and more (sm_80, sm_90, ...), or 99 KiB (sm_86,
// sm_89, sm_120).
enum class Family { large_shared, small_shared };

constexpr int shared_limit_of(Family family) { return (family == Family::large_shared ? 163 : 99) * 1024; }

// Whether the code for an architecture holds a family's kernels; where it does not, they are left empty.
// `architecture` is 10 * compute capability as in __CUDA_ARCH__: 800 for sm_80. Code for sm_80 also runs on
// sm_86, and what is compiled from its PTX on every later GPU: both families are there. Only code that is
// `specific` to its architecture (sm_90a) does without the small shapes, and code for GPUs with little shared
// memory without the large ones.
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

// The family whose kernels a GPU runs: `shared_limit` bytes are what a block may have there. Throws
// std::runtime_error if none of the loaded ones fits.
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

// Forward: a block owns `queries` rows, each warp 16 * row_tiles of them, and walks over the keys `keys` at a
// time. Shared memory: Q, then `stages` pairs of K and V tiles, and the slope's terms of a tile's columns; O
// leaves through Q's place.
template <int D, Family family>
struct ForwardTraits;

template <int D, int query_rows, int key_rows, int warp_count, int stage_count, int blocks>
struct ForwardShape {
  static constexpr int head_dim = D, queries = query_rows, keys = key_rows, warps = warp_count,
                       stages = stage_count;
  static constexpr int threads = 32 * warps, row_tiles = queries / (16 * warps);
  static constexpr int shared_bytes = (queries + 2 * stages * keys) * D * 2 + 8 * keys;
  static constexpr int blocks_per_multiprocessor = blocks;
  static_assert(queries == 16 * warps * row_tiles && keys % 16 == 0);
};

// Accumulators a thread: row_tiles * (keys + D) / 2 registers (S and O).
template <>
struct ForwardTraits<32, Family::large_shared> : ForwardShape<32, 128, 64, 4, 2, 2> {
};  // 96 accumulators, 24.5 KiB
template <>
struct ForwardTraits<64, Family::large_shared> : ForwardShape<64, 128, 64, 4, 2, 2> {
};  // 128 accumulators, 48.5 KiB
template <>
struct ForwardTraits<128, Family::large_shared> : ForwardShape<128, 128, 64, 4, 2, 1> {
};  // 192 accumulators, 96.5 KiB
template <>
struct ForwardTraits<32, Family::small_shared> : ForwardShape<32, 128, 64, 4, 2, 2> {};
template <>
struct ForwardTraits<64, Family::small_shared> : ForwardShape<64, 128, 64, 4, 2, 2> {
};  // 128 accumulators, 48.5 KiB
template <>
struct ForwardTraits<128, Family::small_shared> : ForwardShape<128, 128, 32, 4, 2, 1> {
};  // 160 accumulators, 64.25 KiB

// Backward, the pass over keys: a block owns `keys` rows of K and V and walks over the queries, `queries` at
// a time. Its warps stand in a grid of key_warps (16 * key_tiles keys each) by query_warps (warp_queries
// each). Shared memory: K, V, two pairs of Q and dO tiles, (lse, delta) of two tiles of queries, the slope's
// terms of the keys, and two tiles of dS^T for the form that adds up dQ.
template <int D, int key_rows, int query_rows, int key_warp_count, int query_warp_count>
struct BackwardKeysShape {
  static constexpr int head_dim = D, keys = key_rows, queries = query_rows, key_warps = key_warp_count,
                       query_warps = query_warp_count;
  static constexpr int warps = key_warps * query_warps, threads = 32 * warps;
  static constexpr int key_tiles = keys / (16 * key_warps), warp_queries = queries / query_warps;
  static constexpr int tile_elements = (2 * keys + 4 * queries) * D;
  static constexpr int shared_bytes = tile_elements * 2 + 4 * queries * 4 + 8 * keys,
                       ds_bytes = keys * queries * 2;
  static constexpr int accumulators =
      key_tiles * (warp_queries + D);  // registers a thread: S^T, dP^T, dK, dV
  static_assert(keys == 16 * key_warps * key_tiles && warp_queries % 16 == 0 && threads >= queries);
  static_assert(query_warps == 1 ||
                (query_warps == 2 && keys <= 2 * queries));  // the halves are added through the tiles' place
};

// Backward, the pass over queries: a block owns `queries` rows of Q and dO, each warp 16 * row_tiles of them,
// and walks over the keys, `keys` at a time. Shared memory: Q, dO, two pairs of K and V tiles, and (lse,
// delta, sum of S) of the rows.
template <int D, int query_rows, int key_rows, int warp_count, int blocks>
struct BackwardQueriesShape {
  static constexpr int head_dim = D, queries = query_rows, keys = key_rows, warps = warp_count,
                       threads = 32 * warps;
  static constexpr int row_tiles = queries / (16 * warps), blocks_per_multiprocessor = blocks;
  static constexpr int tile_elements = (2 * queries + 4 * keys) * D,
                       shared_bytes = tile_elements * 2 + 3 * queries * 4;
  static constexpr int accumulators = row_tiles * (keys + D / 2);  // registers a thread: S, dP, dQ
  static_assert(queries == 16 * warps * row_tiles && keys % 16 == 0);
};

// 8 warps, one block a multiprocessor, up to 255 registers. Bytes spilled (ptxas 13.0): the default form
// none; the form with dQ none for D <= 64, but 8 with the prior at D = 64 on sm_90a, and at most 140 for D =
// 128.
template <int D, Family family>
struct BackwardKeysTraits;
template <Family family>
struct BackwardKeysTraits<32, family> : BackwardKeysShape<32, 128, 64, 4, 2> {
};  // 128 accumulators, 34 KiB (66 with dQ)
template <Family family>
struct BackwardKeysTraits<64, family> : BackwardKeysShape<64, 128, 64, 4, 2> {
};  // 192 accumulators, 66 KiB (98 with dQ)
template <>
struct BackwardKeysTraits<128, Family::large_shared> : BackwardKeysShape<128, 128, 64, 8, 1> {
};  // 192 accumulators, 130 KiB (162 with dQ)
template <>
struct BackwardKeysTraits<128, Family::small_shared> : BackwardKeysShape<128, 64, 64, 4, 2> {
};  // 160 accumulators, 97.5 KiB (113.5 with dQ: too much)

// Up to 255 registers, no spills.
template <int D, Family family>
struct BackwardQueriesTraits;
template <Family family>
struct BackwardQueriesTraits<32, family> : BackwardQueriesShape<32, 128, 64, 4, 2> {
};  // 160 accumulators, 33 KiB
template <>
struct BackwardQueriesTraits<64, Family::large_shared> : BackwardQueriesShape<64, 128, 64, 4, 2> {
};  // 192 accumulators, 65 KiB
template <>
struct BackwardQueriesTraits<64, Family::small_shared> : BackwardQueriesShape<64, 128, 32, 4, 1> {
};  // 128 accumulators, 49 KiB
template <Family family>
struct BackwardQueriesTraits<128, family> : BackwardQueriesShape<128, 128, 32, 4, 1> {
};  // 192 accumulators, 97 KiB

// Whether the pass over keys has a form that adds up dQ too (with dS^T in shared memory).
template <int D, Family family>
constexpr bool has_dq_form = BackwardKeysTraits<D, family>::shared_bytes +
                                 2 * BackwardKeysTraits<D, family>::ds_bytes <=
                             shared_limit_of(family);

// The most dynamic shared memory that a family's kernels take, in bytes.
template <Family family, int... D>
constexpr int most_shared_bytes =
    std::max({ForwardTraits<D, family>::shared_bytes..., BackwardQueriesTraits<D, family>::shared_bytes...,
              (BackwardKeysTraits<D, family>::shared_bytes +
               (has_dq_form<D, family> ? 2 * BackwardKeysTraits<D, family>::ds_bytes : 0))...});
static_assert(most_shared_bytes<Family::large_shared, 32, 64, 128> <= shared_limit_of(Family::large_shared));
static_assert(most_shared_bytes<Family::small_shared, 32, 64, 128> <= shared_limit_of(Family::small_shared));

}  // namespace goat::GOAT_TARGET
