// Tiles of bf16 rows in shared memory, and the fragments that mma.sync reads from a tile.
//
// A tile holds rows of D coordinates (D = 32, 64, 128) in chunks of 8 coordinates (16 bytes). Chunk c of row
// r is stored in place c ^ swizzle(r) of the row. One phase of ldmatrix reads eight rows. The swizzle puts
// their chunks into eight different groups of four banks, so that there are no bank conflicts.
#pragma once

#include "kernels/cuda/attention/attention_compiler.cuh"
#include "kernels/cuda/attention/attention_heads.cuh"
#include "kernels/cuda/ptx.cuh"

namespace goat::GOAT_TARGET {

template <int D>
struct Tile {
  static_assert(D == 32 || D == 64 || D == 128);
  static constexpr int chunks = D / 8;
  static constexpr int bytes(int rows) { return rows * D * static_cast<int>(sizeof(bf16)); }

  static __device__ __forceinline__ bf16* at(bf16* tile, int row, int chunk) {
    return tile + offset(row, chunk);
  }

  // Starts the copy of rows [first, first + row_count) of `source` into the tile. All `threads` of the block
  // call this. Coordinates from head_dim on become zeros. With `checked`, rows from `limit` on become zeros
  // too; without it, all rows must lie below `limit`. The rows must be 16-byte aligned, and head_dim % 8 ==
  // 0.
  template <int row_count, int threads, bool checked>
  static __device__ __forceinline__ void load(bf16* tile, HeadRows<const bf16> source, int first, int limit,
                                              int head_dim) {
    constexpr int rows_at_once = threads / chunks;
    static_assert(threads % chunks == 0 && row_count % rows_at_once == 0 && rows_at_once % 8 == 0);
    const int thread = thread_now(), row = thread / chunks, chunk = thread % chunks;
    const bool inside = chunk * 8 < head_dim;
    const bf16* from = source.row(first + row) + (inside ? chunk * 8 : 0);
    bf16* to = at(tile, row, chunk);  // rows_at_once is a multiple of the swizzle's period
#pragma unroll
    for (int r = 0; r < row_count; r += rows_at_once) {
      const bool valid = inside && (!checked || first + row + r < limit);
      copy_async_16(to + r * D, checked && !valid ? source.data : from, valid);
      // Without opaque() the compiler keeps every multiple of the step in a register.
      from = opaque(from + rows_at_once * source.stride);
    }
  }

  // The offset in a tile, in elements, at which this thread's row of an ldmatrix begins. There are two ways
  // to assign the four 8 x 8 matrices to the lanes. A loop constructs Lanes again in every step from an
  // opaque lane, so that the compiler keeps no addresses in registers between the steps; see read().
  struct Lanes {
    int straight;  // matrices 0, 1: rows 0-7, 8-15 of the first chunk; 2, 3: the same rows of the second
    int crossed;   // matrices 0, 1: first and second chunk of rows 0-7; 2, 3: the same chunks of rows 8-15

    __device__ __forceinline__ explicit Lanes(int lane = static_cast<int>(threadIdx.x) % 32)
        : straight(offset(lane & 15, lane >> 4)),
          crossed(offset((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1)) {}
  };

  // The A fragment (16 x 16): rows from `row` on, coordinates from 8 chunk on. In all four functions `row` is
  // a multiple of 8 and `chunk` is even.
  static __device__ __forceinline__ void a_fragment(std::uint32_t (&a)[4], bf16* tile, int row, int chunk,
                                                    Lanes lanes = Lanes()) {
    ldmatrix_x4(a, read(tile, lanes.straight, row, chunk));
  }
  // The A fragment of the transposed tile: its rows are the coordinates from 8 chunk on, its columns (k) are
  // the tile's rows from `row` on.
  static __device__ __forceinline__ void a_fragment_transposed(std::uint32_t (&a)[4], bf16* tile, int row,
                                                               int chunk, Lanes lanes = Lanes()) {
    ldmatrix_x4_transposed(a, read(tile, lanes.crossed, row, chunk));
  }
  // Two B fragments (16 x 8 each). Their columns n are the tile's rows row..row+7 (b[0], b[1]) and
  // row+8..row+15 (b[2], b[3]). Their k are the coordinates from 8 chunk on.
  static __device__ __forceinline__ void b_fragments(std::uint32_t (&b)[4], bf16* tile, int row, int chunk,
                                                     Lanes lanes = Lanes()) {
    ldmatrix_x4(b, read(tile, lanes.crossed, row, chunk));
  }
  // Two B fragments (16 x 8 each). Their k are the tile's rows row..row+15. Their columns n are the 8
  // coordinates from 8 chunk on (b[0], b[1]) and the next 8 (b[2], b[3]).
  static __device__ __forceinline__ void b_fragments_transposed(std::uint32_t (&b)[4], bf16* tile, int row,
                                                                int chunk, Lanes lanes = Lanes()) {
    ldmatrix_x4_transposed(b, read(tile, lanes.straight, row, chunk));
  }

 private:
  static __device__ __forceinline__ int offset(int row, int chunk) {
    const int swizzle = D == 32 ? (row >> 1) & 3 : row & 7;
    return row * D + ((chunk ^ swizzle) << 3);
  }
  // The swizzle is an exclusive or. Adding an even chunk to c = 0 or 1 is an exclusive or too. So
  //   (chunk + c) ^ swizzle = (c ^ swizzle) ^ chunk.
  static __device__ __forceinline__ const bf16* read(const bf16* tile, int offset, int row, int chunk) {
    return tile + row * D + (offset ^ (chunk << 3));
  }
};

}  // namespace goat::GOAT_TARGET
