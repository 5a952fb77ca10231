// mma.sync and ldmatrix. The fragments have the layouts of the PTX ISA (kernels/cuda/ptx.cuh shows them).
#include <bit>
#include <cstring>

#include "kernels/simt/races.h"
#include "kernels/simt/report.h"
#include "kernels/simt/scheduler.h"

// Compiled for AVX-512, AVX2 with FMA, and the baseline; the dynamic linker picks one. Such functions may
// call only builtins.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define GOAT_SIMT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GOAT_SIMT_CLONES
#endif

namespace goat::on_simt {

namespace {

// Converts two bf16 to two floats.
GOAT_SIMT_INLINE std::uint64_t widened(std::uint32_t pair) {
  return static_cast<std::uint64_t>(pair << 16) | static_cast<std::uint64_t>(pair & 0xFFFF0000u) << 32;
}

typedef float Row __attribute__((vector_size(32)));  // 8 columns
typedef std::uint32_t RowBits __attribute__((vector_size(32)));

}  // namespace

GOAT_SIMT_CLONES void multiply_fragments(void** argument, std::uint32_t) {
  alignas(32) std::uint64_t a[16][8], d[16][4];  // two floats per element
  alignas(32) std::uint32_t b[8][8];             // [k / 2][column], two bf16 per element
  for (int lane = 0; lane < 32; ++lane) {
    const MatrixProduct& part = *static_cast<const MatrixProduct*>(argument[lane]);
    const int g = lane / 4, t = lane % 4;
    a[g][t] = widened(part.a[0]);
    a[g + 8][t] = widened(part.a[1]);
    a[g][t + 4] = widened(part.a[2]);
    a[g + 8][t + 4] = widened(part.a[3]);
    b[t][g] = part.b[0];
    b[t + 4][g] = part.b[1];
    __builtin_memcpy(&d[g][t], part.d, 8);
    __builtin_memcpy(&d[g + 8][t], part.d + 2, 8);
  }
  Row b_row[16];
  for (int k = 0; k < 8; ++k) {
    RowBits pairs;
    __builtin_memcpy(&pairs, b[k], sizeof pairs);
    b_row[2 * k] = (Row)(pairs << 16);
    b_row[2 * k + 1] = (Row)(pairs & 0xFFFF0000u);
  }
  for (int i = 0; i < 16; i += 4) {  // four rows at a time, for four independent sums
    Row sum[4];
    __builtin_memcpy(sum, d[i], sizeof sum);
    const float* a_row = reinterpret_cast<const float*>(a[i]);
    for (int k = 0; k < 16; ++k) {
      sum[0] += a_row[k] * b_row[k];
      sum[1] += a_row[16 + k] * b_row[k];
      sum[2] += a_row[32 + k] * b_row[k];
      sum[3] += a_row[48 + k] * b_row[k];
    }
    __builtin_memcpy(d[i], sum, sizeof sum);
  }
  for (int lane = 0; lane < 32; ++lane) {
    MatrixProduct& part = *static_cast<MatrixProduct*>(argument[lane]);
    __builtin_memcpy(part.d, &d[lane / 4][lane % 4], 8);
    __builtin_memcpy(part.d + 2, &d[lane / 4 + 8][lane % 4], 8);
  }
}

// ---- ldmatrix

namespace {

// Checks and returns a row address of ldmatrix. Lane 8 i + r gives row r of matrix i.
const void* checked_row(Worker& worker, const Thread& thread, const void* row) {
  if (!worker.shared.valid(row, 16)) [[unlikely]]
    fail(formatted("ldmatrix: out of bounds, lane %u reads 16 bytes at %s, at ", thread.lane,
                   worker.shared.contains(row) ? worker.shared.describe(row).c_str()
                                               : "an address that is not shared memory") +
         source_place(thread.code));
  if (worker.shared.offset(row) % 16 != 0) [[unlikely]]
    fail(formatted("ldmatrix: misaligned access, lane %u reads 16 bytes at %s, at ", thread.lane,
                   worker.shared.describe(row).c_str()) +
         source_place(thread.code));
  if (worker.races) worker.races->access(thread, row, 16, Access::read, thread.code);
  return row;
}

// Whether rows conflict. Rows in the same 16-byte column of the 128-byte bank line are read one
// after the other.
bool conflicting(const SharedMemory& shared, const void* const (&rows)[8]) {
  std::uint32_t columns = 0;
  for (const void* row : rows) columns |= 1u << shared.offset(row) / 16 % 8;
  return std::popcount(columns) < 8;
}

template <bool transposed>
void read_matrices_of_warp(void** argument) {
  Worker& worker = *current_worker;
  const Thread* lanes = &worker.threads[current_thread->warp * 32u];
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t element[8][8];
    const void* rows[8];
    for (int r = 0; r < 8; ++r) {
      const int lane = matrix * 8 + r;
      rows[r] = checked_row(worker, lanes[lane], static_cast<const MatrixRead*>(argument[lane])->row);
      std::memcpy(element[r], rows[r], 16);
    }
    ++worker.counters.matrix_reads;
    worker.counters.conflicting_matrix_reads += conflicting(worker.shared, rows);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      const std::uint32_t low = transposed ? element[t][g] : element[g][t],
                          high = transposed ? element[t + 1][g] : element[g][t + 1];
      static_cast<MatrixRead*>(argument[lane])->fragment[matrix] = low | high << 16;
    }
  }
}

}  // namespace

void read_matrices(void** argument, std::uint32_t) { read_matrices_of_warp<false>(argument); }
void read_matrices_transposed(void** argument, std::uint32_t) { read_matrices_of_warp<true>(argument); }

}  // namespace goat::on_simt
