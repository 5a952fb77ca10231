// How long the simulated GPU takes for a switch between threads, barriers, shuffles, tensor-core instructions
// and two small kernels. Prints "name ns", CPU time of one host thread per unit of work. With -DPROTOTYPE the
// same kernels run on the emulator this one was made from (simt_speed.sh).
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <vector>

#ifdef PROTOTYPE
#include "mma.cuh"
namespace emulator = simt;
#define SHARED SIMT_SHARED
#define start_kernel ::simt::launch
template <class T>
T* dynamic_memory() {
  return simt::dyn_smem<T>();
}
using simt::ldmatrix_x4;
using simt::mma_bf16;
static void* allocate(std::size_t bytes) { return simt::dev_alloc(bytes); }
static void one_host_thread() { simt::options().os_threads = 1; }
#else
#include "kernels/cuda/ptx.cuh"
using namespace goat::on_simt;
#define SHARED GOAT_SHARED
#define start_kernel ::goat::on_simt::enqueue
template <class T>
T* dynamic_memory() {
  return dynamic_shared<T>();
}
static void* allocate(std::size_t bytes) { return device_allocate(bytes); }
static void one_host_thread() { options().threads = 1; }
#endif

namespace {

constexpr unsigned full = 0xFFFFFFFFu;

__global__ void empty(int) {}
__global__ void syncwarps(int count) {
  for (int i = 0; i < count; ++i) __syncwarp();
}
__global__ void barriers(int count) {
  for (int i = 0; i < count; ++i) __syncthreads();
}
__global__ void shuffles(float* out, int count) {
  float value = static_cast<float>(threadIdx.x);
  for (int i = 0; i < count; ++i) value += __shfl_xor_sync(full, value, 1 << i % 5);
  out[threadIdx.x] = value;
}
__global__ void products(float* out, int count) {
  float d[4] = {};
  const std::uint32_t a[4] = {threadIdx.x, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
  for (int i = 0; i < count; ++i) mma_bf16(d, a, 0x3F803F80u, 0x3F803F80u);
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
__global__ void matrix_reads(float* out, int count) {
  std::uint32_t* tile = dynamic_memory<std::uint32_t>();
  for (int i = 0; i < 32; ++i) tile[threadIdx.x * 32 + static_cast<unsigned>(i)] = threadIdx.x;
  __syncwarp();
  std::uint32_t sum = 0, r[4];
  for (int i = 0; i < count; ++i) {
    ldmatrix_x4(r, tile + (threadIdx.x + static_cast<unsigned>(i)) % 32 * 4);
    sum += r[0] + r[3];
  }
  out[threadIdx.x] = static_cast<float>(sum);
}
// Rows of 768: mean and variance by warp shuffles and shared memory, four barriers.
__global__ void normalised(const float* x, float* y) {
  SHARED(partial, float[8]);
  const float* row = x + blockIdx.x * 768;
  float value[3], total = 0;
  for (unsigned i = 0; i < 3; ++i) total += value[i] = row[threadIdx.x + 256 * i];
  for (int pass = 0; pass < 2; ++pass) {
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(full, total, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = total;
    __syncthreads();
    total = 0;
    for (float part : partial) total += part;
    if (pass == 0) {
      const float mean = total / 768;
      total = 0;
      for (float& v : value) v -= mean, total += v * v;
    }
  }
  for (unsigned i = 0; i < 3; ++i)
    y[blockIdx.x * 768 + threadIdx.x + 256 * i] = value[i] * rsqrtf(total / 768 + 1e-5f);
}
// The inner loop of attention for 64 queries and keys, d_h = 64: scores, softmax, values; 4 warps.
__global__ void attention_like(float* out, int tiles) {
  std::uint32_t* tile = dynamic_memory<std::uint32_t>();
  for (unsigned i = threadIdx.x; i < 4096; i += 128) tile[i] = 0x3C003C00u + i % 7;
  float o[8][4] = {}, largest = -1e30f;
  std::uint32_t r[4];
  for (int step = 0; step < tiles; ++step) {
    __syncthreads();
    float s[8][4] = {};
    for (int n = 0; n < 8; n += 2)
      for (int k = 0; k < 4; ++k) {
        ldmatrix_x4(r, tile + (threadIdx.x % 32 + static_cast<unsigned>(n * 4 + k * 32)) % 512 * 4);
        const std::uint32_t a[4] = {r[3], r[2], r[1], r[0]};
        mma_bf16(s[n], a, r[0], r[1]);
        mma_bf16(s[n + 1], a, r[2], r[3]);
      }
    float row = s[0][0];
    for (auto& part : s)
      for (float v : part) row = std::max(row, v);
    row = std::max(row, __shfl_xor_sync(full, row, 1));
    row = std::max(row, __shfl_xor_sync(full, row, 2));
    largest = std::max(largest, row);
    for (auto& part : s)
      for (float& v : part) v = std::exp2(v - largest);
    for (int n = 0; n < 8; n += 2)
      for (int k = 0; k < 4; ++k) {
        ldmatrix_x4(r, tile + (threadIdx.x % 32 + static_cast<unsigned>(n * 8 + k * 16)) % 512 * 4);
        const std::uint32_t a[4] = {__float_as_uint(s[2 * k][0]), __float_as_uint(s[2 * k][1]),
                                    __float_as_uint(s[2 * k + 1][2]), 0u};
        mma_bf16(o[n], a, r[0], r[1]);
        mma_bf16(o[n + 1], a, r[2], r[3]);
      }
    __syncthreads();
  }
  out[blockIdx.x * 128 + threadIdx.x] = o[0][0] + o[7][3];
}

double cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}
void measure(const char* name, double units, const std::function<void()>& work) {
  work();
  double best = 1e30;
  for (int i = 0; i < 3; ++i) {
    const double start = cpu_ns();
    work();
    best = std::min(best, cpu_ns() - start);
  }
  std::printf("%s %.3f\n", name, best / units);
}

}  // namespace

int main() {
  one_host_thread();
  float* x = static_cast<float*>(allocate(256 * 768 * 4));
  float* y = static_cast<float*>(allocate(256 * 768 * 4));
  for (int i = 0; i < 256 * 768; ++i) x[i] = static_cast<float>(i % 31);
  constexpr std::nullptr_t stream{};
  measure("thread_of_empty_kernel", 4096. * 256,
          [&] { start_kernel(empty, dim3(4096), dim3(256), 0, stream, 0); });
  measure("syncwarp_per_thread", 4000. * 128,
          [&] { start_kernel(syncwarps, dim3(1), dim3(128), 0, stream, 4000); });
  measure("syncthreads_per_thread", 2000. * 256,
          [&] { start_kernel(barriers, dim3(1), dim3(256), 0, stream, 2000); });
  measure("shuffle_per_thread", 4000. * 128,
          [&] { start_kernel(shuffles, dim3(1), dim3(128), 0, stream, y, 4000); });
  measure("mma_per_warp", 4000. * 4, [&] { start_kernel(products, dim3(1), dim3(128), 0, stream, y, 4000); });
  measure("ldmatrix_per_warp", 4000.,
          [&] { start_kernel(matrix_reads, dim3(1), dim3(32), 4096, stream, y, 4000); });
  measure("layernorm_like_per_element", 256. * 768,
          [&] { start_kernel(normalised, dim3(256), dim3(256), 0, stream, x, y); });
  measure("attention_like_per_flop", 8. * 16 * 4 * 64 * 64 * 64,
          [&] { start_kernel(attention_like, dim3(8), dim3(128), 16384, stream, y, 16); });
}
